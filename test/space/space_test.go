// Package space fills the database of a server: below etcd's quota the server refuses writes that grow it, and a server
// whose quota was exceeded recovers.
package space

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/test/upstream"
)

const (
	quota        = 16 << 20
	objectSize   = 100 << 10
	patience     = time.Minute
	pollInterval = 50 * time.Millisecond
	namespace    = "default"
)

// server is a server with a small quota.
type server struct {
	*testing.T
	*upstream.APIServer
	directory string
	client    kubernetes.Interface
	created   int // objects by fill
}

// start starts a server. Superseded revisions are kept for a second, not for minutes.
func start(t *testing.T, arguments ...string) *server {
	t.Helper()
	s := &server{T: t, directory: t.TempDir()}
	pki, err := upstream.NewPKI(filepath.Join(s.directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	s.APIServer, err = upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: s.directory, PKI: pki, Arguments: append([]string{
			fmt.Sprintf("--etcd-quota-backend-bytes=%d", quota), "--etcd-unsafe-no-fsync", "--etcd-compaction-interval=1s",
		}, arguments...),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.StopAfter(t)
	s.Admin.QPS = -1
	s.client = kubernetes.NewForConfigOrDie(s.Admin)
	return s
}

// payload is random and does not compress.
func payload(size int) string {
	random := make([]byte, size*3/4)
	_, _ = rand.Read(random)
	return base64.StdEncoding.EncodeToString(random)
}

func configMap(name string, size int) *core.ConfigMap {
	return &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name},
		Data: map[string]string{"payload": payload(size)}}
}

func (s *server) create(object *core.ConfigMap) error {
	_, err := s.client.CoreV1().ConfigMaps(namespace).Create(s.Context(), object, meta.CreateOptions{})
	return err
}

// fill creates objects until one is refused, and returns the refusal.
func (s *server) fill() error {
	s.Helper()
	for ; ; s.created++ {
		if err := s.create(configMap(fmt.Sprintf("object-%d", s.created), objectSize)); err != nil {
			s.Logf("object %d is refused: %v", s.created, err)
			return err
		}
	}
}

// mustRefuse checks that a write was refused with the error for exhausted space.
func (s *server) mustRefuse(err error, text string) {
	s.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusInsufficientStorage ||
		status.Status().Reason != "InsufficientStorage" || !strings.Contains(status.Status().Message, text) {
		s.Errorf("the answer is %+v, want 507 with %q", err, text)
	}
}

func (s *server) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits until something succeeds.
func (s *server) eventually(what string, try func() error) {
	s.Helper()
	var last error
	err := wait.PollUntilContextTimeout(s.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("%s: %v", what, last)
	}
}

func (s *server) deleteAll() {
	s.Helper()
	s.must(s.client.CoreV1().ConfigMaps(namespace).DeleteCollection(s.Context(), meta.DeleteOptions{}, meta.ListOptions{}))
}

func (s *server) get(path string) string {
	s.Helper()
	body, err := s.client.CoreV1().RESTClient().Get().AbsPath(path).Param("verbose", "").DoRaw(s.Context())
	s.must(err)
	return string(body)
}

// mustReport checks health and metrics.
func (s *server) mustReport(readyz string, metrics ...string) {
	s.Helper()
	if got := s.get("/readyz"); !strings.Contains(got, readyz) || !strings.Contains(got, "readyz check passed") {
		s.Errorf("/readyz has no %q:\n%s", readyz, got)
	}
	got := s.get("/metrics")
	for _, metric := range metrics {
		if !strings.Contains(got, metric) {
			s.Errorf("there is no metric %q", metric)
		}
	}
}

// etcd runs `quorate etcd` against the server's member.
func (s *server) etcd(result any, arguments ...string) {
	s.Helper()
	binary, err := upstream.Quorate(s.Context())
	s.must(err)
	arguments = append([]string{"etcd", "-o", "json", "--data-dir", filepath.Join(s.directory, "member")}, arguments...)
	output, err := exec.CommandContext(s.Context(), binary, arguments...).CombinedOutput()
	if err != nil {
		s.Fatalf("quorate %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	s.must(json.Unmarshal(output, result))
}

// TestSoftQuota: the server refuses writes that grow the database before etcd refuses all, until there is space again.
func TestSoftQuota(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	s := start(t,
		"--etcd-soft-quota-percent=60") // with the usual one, much of so small a quota is written before it is measured
	configMaps := s.client.CoreV1().ConfigMaps(namespace)
	guarded := configMap("guarded", 1)
	guarded.Finalizers = []string{"example.com/guard"}
	s.must(s.create(guarded))
	s.eventually("the warning", func() error { // compaction may make room for another object
		s.mustRefuse(s.fill(), "storage is full")
		if got := s.get("/readyz"); !strings.Contains(got, "[!]etcd-space warning: soft quota exceeded") {
			return errors.New(got)
		}
		return nil
	})
	s.mustReport("etcd-space",
		`apiserver_storage_no_space_alarm{storage_cluster_id="etcd-0"} 0`, "apiserver_storage_soft_quota_refusals_total")

	object, err := configMaps.Get(t.Context(), "object-0", meta.GetOptions{})
	s.must(err)
	object.Data["more"] = payload(8 * objectSize)
	_, err = configMaps.Update(t.Context(), object, meta.UpdateOptions{})
	s.mustRefuse(err, "storage is full")
	if err := s.create(configMap("object-1", 1)); !apierrors.IsAlreadyExists(err) {
		t.Errorf("creating what exists: %v", err)
	}
	object.Data = map[string]string{"less": "x"}
	_, err = configMaps.Update(t.Context(), object, meta.UpdateOptions{})
	s.must(err)
	lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: "leader"}}
	_, err = s.client.CoordinationV1().Leases(namespace).Create(t.Context(), lease, meta.CreateOptions{})
	s.must(err)
	// A pending deletion makes the object larger.
	s.must(configMaps.Delete(t.Context(), "guarded", meta.DeleteOptions{}))
	guarded, err = configMaps.Get(t.Context(), "guarded", meta.GetOptions{})
	s.must(err)
	guarded.Annotations = map[string]string{"state": "cleaning up"}
	_, err = configMaps.Update(t.Context(), guarded, meta.UpdateOptions{})
	s.must(err)

	s.deleteAll()
	s.eventually("creating after everything was deleted", func() error { return s.create(configMap("again", objectSize)) })
	s.eventually("the warning", func() error {
		if got := s.get("/readyz"); strings.Contains(got, "etcd-space") {
			return errors.New(got)
		}
		return nil
	})
}

// TestNoSpace: after NOSPACE, a server is writable again after deletions, automatic compaction and defragmentation.
func TestNoSpace(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	s := start(t, "--etcd-soft-quota-percent=100")
	s.mustRefuse(s.fill(), "database space exceeded")
	s.mustReport("[!]etcd-space warning: alarm NOSPACE", `apiserver_storage_no_space_alarm{storage_cluster_id="etcd-0"} 1`)
	event := &core.Event{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: "with-a-lease"},
		InvolvedObject: core.ObjectReference{Namespace: namespace}}
	_, err := s.client.CoreV1().Events(namespace).Create(t.Context(), event, meta.CreateOptions{})
	s.mustRefuse(err, "database space exceeded")
	var alarms []struct{ Alarm string }
	if s.etcd(&alarms, "alarm", "list"); len(alarms) != 1 || alarms[0].Alarm != "NOSPACE" {
		t.Errorf("alarms %+v", alarms)
	}

	s.deleteAll()
	var members []struct {
		SizeBytes, InUseBytes, QuotaBytes int64
		Problems                          []string
	}
	s.eventually("compaction", func() error {
		s.etcd(&members, "status")
		if members[0].InUseBytes > quota/4 {
			return fmt.Errorf("%+v", members)
		}
		return nil
	})
	if members[0].QuotaBytes != quota || len(members[0].Problems) != 1 {
		t.Errorf("the status is %+v", members)
	}
	s.mustRefuse(s.create(configMap("early", 1)), "database space exceeded")
	var defragmented []struct{ BeforeBytes, AfterBytes int64 }
	if s.etcd(&defragmented, "defrag"); defragmented[0].AfterBytes > defragmented[0].BeforeBytes/2 {
		t.Errorf("defragmentation: %+v", defragmented)
	}
	s.etcd(&alarms, "alarm", "disarm")
	s.must(s.create(configMap("again", objectSize)))
	s.mustReport("[+]etcd ok", `apiserver_storage_no_space_alarm{storage_cluster_id="etcd-0"} 0`)
	if got := s.get("/readyz"); strings.Contains(got, "etcd-space") {
		t.Errorf("/readyz still warns:\n%s", got)
	}
}
