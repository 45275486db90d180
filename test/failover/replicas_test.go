package failover

import (
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// replicas share one etcd.
type replicas struct {
	*testing.T
	pki  *upstream.PKI
	all  []*upstream.Replica
	etcd *clientv3.Client
	// answers to all writes.
	answers *answers
	// lists counts full reads by informers: lists, and watches with initial events.
	lists atomic.Int64
}

func startReplicas(t *testing.T, launches ...upstream.Launch) *replicas {
	t.Helper()
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	store := upstream.StartStore(t)
	r := &replicas{T: t, pki: pki, answers: newAnswers()}
	if r.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{store.Endpoint}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.etcd.Close() })
	for i, launch := range launches {
		one := &upstream.Replica{Launch: launch, Options: upstream.Options{
			Directory: filepath.Join(directory, string(rune('a'+i))), PKI: pki, Etcd: store.Endpoint,
			Arguments: []string{"--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000"},
		}}
		r.all = append(r.all, one)
		r.start(one)
	}
	t.Cleanup(func() {
		for _, one := range r.all {
			one.Server().Kill()
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", one.Server().Name, one.Server().Tail())
			}
		}
	})
	return r
}

func (r *replicas) start(one *upstream.Replica) {
	r.Helper()
	if err := one.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// config returns the configuration of a client that connects to the preferred replica, and to another if that is down.
func (r *replicas) config(preferred int) *rest.Config {
	config := r.pki.Admin(1) // Dial overrides the address
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+
		",application/json"
	config.Dial = upstream.DialReplicas(r.all, preferred)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &r.lists} })
	return config
}

func (r *replicas) client(preferred int) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(r.config(preferred))
}

// counting counts the lists of informers.
type counting struct {
	http.RoundTripper
	lists *atomic.Int64
}

func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	if query.Has("labelSelector") && (!query.Has("watch") || query.Has("sendInitialEvents")) {
		c.lists.Add(1)
	}
	return c.RoundTripper.RoundTrip(request)
}
