package failover

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/test/genuine"
)

// launch starts an API server.
type launch func(context.Context, genuine.Options) (*genuine.APIServer, error)

// replica is an API server that may be killed and started again, at another port then.
type replica struct {
	launch  launch
	options genuine.Options
	server  *genuine.APIServer
	address atomic.Pointer[string] // of the last start that became ready
}

// replicas share one etcd.
type replicas struct {
	*testing.T
	pki  *genuine.PKI
	all  []*replica
	etcd *clientv3.Client
	// answers are those to all writes.
	answers *answers
	// lists counts what clients asked for from the beginning: lists, and watches that begin with one.
	lists atomic.Int64
}

func startReplicas(t *testing.T, launches ...launch) *replicas {
	t.Helper()
	directory := t.TempDir()
	pki, err := genuine.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := genuine.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	r := &replicas{T: t, pki: pki, answers: newAnswers()}
	if r.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.etcd.Close() })
	for i, launch := range launches {
		one := &replica{launch: launch, options: genuine.Options{
			Directory: filepath.Join(directory, string(rune('a'+i))), PKI: pki, Etcd: etcd.Endpoint,
			Arguments: []string{"--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000"},
		}}
		r.all = append(r.all, one)
		r.start(one)
	}
	t.Cleanup(func() {
		for _, one := range r.all {
			one.server.Kill()
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", one.server.Name, one.server.Tail())
			}
		}
	})
	return r
}

func (r *replicas) start(one *replica) {
	r.Helper()
	server, err := one.launch(r.Context(), one.options)
	if err != nil {
		r.Fatal(err)
	}
	host, err := url.Parse(server.Admin.Host)
	if err != nil {
		r.Fatal(err)
	}
	one.server = server
	one.address.Store(&host.Host)
}

// config is that of a client which connects to the preferred replica, and to another when that is not there.
func (r *replicas) config(preferred int) *rest.Config {
	config := r.pki.Admin(1) // what is dialled is decided below
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+",application/json"
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var failures []error
		for i := range r.all {
			connection, err := new(net.Dialer).DialContext(ctx, network, *r.all[(preferred+i)%len(r.all)].address.Load())
			if err == nil {
				return connection, nil
			}
			failures = append(failures, err)
		}
		return nil, errors.Join(failures...)
	}
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
