package compatibility

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// TestKine runs Quorate and kube-apiserver on kine.
func TestKine(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for _, name := range upstream.KineStores {
		t.Run(name, func(t *testing.T) { useKine(t, name, upstream.StartKine(t, name)) })
	}
}

func useKine(t *testing.T, name string, store *upstream.Store) {
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	options := upstream.Options{Directory: directory, PKI: pki, Etcd: store.Endpoint,
		Arguments: []string{
			"--event-ttl=5s", "--etcd-compaction-interval=2s", "--feature-gates=AllowUnsafeMalformedObjectDeletion=true",
		}}
	process, err := upstream.StartQuorate(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	testedFeatures(t, process, name)
	s := newServer(t, "quorate", process.Admin)
	s.create(t, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	for _, kind := range kinds() {
		life(t, kind, s, s)
	}
	options.Directory = t.TempDir()
	kubernetes, err := upstream.StartKubernetes(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	kubernetes.StopAfter(t)
	both := &servers{kubernetes: newServer(t, "kube-apiserver", kubernetes.Admin), quorate: s}
	for _, kind := range kinds()[:4] {
		life(t, kind, both.kubernetes, s)
		life(t, kind, s, both.kubernetes)
	}
	s.expireEvent(t)
	s.readOld(t)
	s.compacted(t)
	s.deleteUnreadable(t, store.Endpoint)
	if err := store.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitServed(t, "/readyz")
	s.create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"after-restart"}}`)
}

// testedFeatures checks that the server has recognized kine and misses no feature. With NATS, progress after a deletion
// depends on other writes.
func testedFeatures(t *testing.T, process *upstream.APIServer, store string) {
	t.Helper()
	log, err := os.ReadFile(process.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]bool{
		"The store is not etcd": true, "The store grants no leases": false,
		"The store sends no progress notifications": false, "too old for consistent reads": false,
	} {
		if store == "nats" && strings.Contains(line, "progress notifications") {
			continue
		}
		if strings.Contains(string(log), line) != want {
			t.Errorf("the log contains %q: %t", line, !want)
		}
	}
}

// expireEvent creates an Event whose TTL is 5 s.
func (s *server) expireEvent(t *testing.T) {
	const events = "/api/v1/namespaces/default/events"
	s.create(t, events, `{"metadata":{"name":"short"},"involvedObject":{"namespace":"default"}}`)
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 60*time.Second, true, func(
		ctx context.Context,
	) (bool, error) {
		code, _, err := s.call(ctx, http.MethodGet, events+"/short", "", nil)
		return code == http.StatusNotFound, err
	})
	if err != nil {
		t.Errorf("an event outlives its TTL: %v", err)
	}
}

// readOld lists at an earlier revision, in pages, and watches from that revision.
func (s *server) readOld(t *testing.T) {
	const collection = "/api/v1/namespaces/default/configmaps"
	var first string
	for i := range 5 {
		created := s.create(t, collection, fmt.Sprintf(`{"metadata":{"name":"old-%d","labels":{"old":"yes"}}}`, i))
		if first == "" {
			first = metadata(created)["resourceVersion"].(string)
		}
	}
	s.delete(t, collection+"/old-3")
	list := s.get(t, collection+"?labelSelector=old&resourceVersionMatch=Exact&resourceVersion="+first)
	if items := list["items"].([]any); len(items) != 1 {
		t.Errorf("%d objects at revision %s, want 1", len(items), first)
	}
	page := s.get(t, collection+"?labelSelector=old&limit=2")
	s.delete(t, collection+"/old-4")
	rest := s.get(t, collection+"?labelSelector=old&continue="+metadata(page)["continue"].(string))
	if got := len(page["items"].([]any)) + len(rest["items"].([]any)); got != 4 {
		t.Errorf("%d objects in two pages, want 4", got)
	}
}

// deleteUnreadable stores a value that is not an object, and deletes it.
func (s *server) deleteUnreadable(t *testing.T, endpoint string) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const key = "/registry/secrets/default/unreadable"
	absent := clientv3.Compare(clientv3.ModRevision(key), "=", 0)
	if _, err := client.Txn(t.Context()).If(absent).Then(clientv3.OpPut(key, "k8s:enc:none")).Commit(); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/secrets/unreadable"
	s.must(t, http.MethodDelete, path+"?ignoreStoreReadErrorWithClusterBreakingPotential=true", "", "")
	s.mustBeGone(t, path)
}

// compacted waits until revision 1 has been compacted.
func (s *server) compacted(t *testing.T) {
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 60*time.Second, true, func(
		ctx context.Context,
	) (bool, error) {
		code, _, err := s.call(ctx, http.MethodGet, "/api/v1/configmaps?resourceVersion=2&resourceVersionMatch=Exact",
			"", nil)
		return code == http.StatusGone, err
	})
	if err != nil {
		t.Errorf("revision 2 never expires: %v", err)
	}
}
