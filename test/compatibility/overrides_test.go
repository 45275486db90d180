package compatibility

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// elsewhere are resources with an override, and the keys of their objects. Resources of kube-apiserver's API extensions
// server stay in the default etcd.
var elsewhere = []struct{ override, collection, key, body string }{
	{"/events", "/api/v1/namespaces/default/events", "events/default", `"involvedObject":{"namespace":"default"}`},
	{"/events", "/apis/events.k8s.io/v1/namespaces/default/events", "events/default",
		`"eventTime":"2026-01-01T00:00:00.000000Z",` +
			`"reportingController":"a.b/c","reportingInstance":"d","action":"e","reason":"f","type":"Normal","regarding":{"namespace":"default"}`},
	{
		"apps/*", "/apis/apps/v1/namespaces/default/controllerrevisions",
		"controllerrevisions/default", `"data":{},"revision":1`,
	},
	{
		"/services", "/api/v1/namespaces/default/services", "services/specs/default",
		`"spec":{"type":"NodePort","ports":[{"port":80}]}`,
	},
	{"", "/api/v1/namespaces/default/configmaps", "configmaps/default", `"data":{"a":"b"}`},
	{"", "/apis/coordination.k8s.io/v1/namespaces/default/leases", "leases/default", `"spec":{}`},
}

// TestOverrides runs Quorate and kube-apiserver on the same two etcds, one of them for an override. Each server reads,
// lists and watches the objects that the other server has stored, in the same etcd and with the revisions of that etcd.
func TestOverrides(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	other, client := startEtcd(t)
	both := startServers(t, "--etcd-servers-overrides=apiextensions.k8s.io/customresourcedefinitions#"+other.Endpoint+
		",/events#"+other.Endpoint+",apps/*#"+other.Endpoint+",/services#"+other.Endpoint)
	for _, c := range elsewhere {
		t.Run(c.collection, func(t *testing.T) {
			for i, writer := range []*server{both.kubernetes, both.quorate} {
				reader := []*server{both.quorate, both.kubernetes}[i]
				name := fmt.Sprintf("object-%d-%d", i, len(c.collection))
				etcd := both.etcd
				if c.override != "" {
					etcd = client
				}
				meet(t, writer, reader, etcd, c.collection, "/registry/"+c.key+"/"+name, name, c.body)
			}
		})
	}
	t.Run("definitions", func(t *testing.T) {
		both.define(t, both.quorate, "elsewheres", "Elsewhere")
		revisionOf(t, both.etcd, "/registry/apiextensions.k8s.io/customresourcedefinitions/elsewheres.example.com")
	})
	revisionOf(t, client, "/registry/ranges/servicenodeports")
	both.haveTheSameChecks(t)
	t.Run("embedded", func(t *testing.T) { both.overrideOfMember(t, other.Endpoint, client) })
	if err := other.Stop(); err != nil {
		t.Fatal(err)
	}
	both.awaitCheck(t, "/readyz/etcd-override-0", http.StatusInternalServerError)
	both.awaitCheck(t, "/readyz/etcd", http.StatusOK)
	both.quorate.create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"in-spite-of-it"}}`)
}

// overrideOfMember starts a server with an embedded member, whose events are in the etcd that the two others use.
func (both *servers) overrideOfMember(t *testing.T, endpoint string, client *clientv3.Client) {
	const events = "/api/v1/namespaces/default/events"
	name := "of-" + both.kubernetes.name
	created := both.kubernetes.create(t, events,
		`{"metadata":{"name":"`+name+`"},"involvedObject":{"namespace":"default"}}`)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	process, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Arguments: []string{"--etcd-servers-overrides=/events#" + endpoint},
	})
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, "quorate with a member", process.Admin)
	mustEqual(t, "an event from before the start", created, s.get(t, events+"/"+name))
	meet(t, s, both.quorate, client, events, "/registry/events/default/third", "third",
		`"involvedObject":{"namespace":"default"}`)
}

// meet writes an object through one server, and reads, lists, watches and changes it through the other.
func meet(t *testing.T, writer, reader *server, etcd *clientv3.Client, collection, key, name, body string) {
	t.Helper()
	next := reader.watch(t, collection, name)
	created := writer.create(t, collection, fmt.Sprintf(`{"metadata":{"name":%q},%s}`, name, body))
	path := collection + "/" + name
	mustEqual(t, "GET through "+reader.name, created, reader.get(t, path))
	if e := next(); e.Type != "ADDED" {
		t.Errorf("the first event through %s is %v", reader.name, e)
	}
	if got, want := metadata(created)["resourceVersion"], revisionOf(t, etcd, key); got != strconv.FormatInt(want, 10) {
		t.Errorf("%s has resourceVersion %v, want %d", path, got, want)
	}
	patched := reader.patch(t, path, `{"metadata":{"labels":{"changed":"yes"}}}`)
	if e := next(); e.Type != "MODIFIED" || metadata(e.Object)["resourceVersion"] != metadata(patched)["resourceVersion"] {
		t.Errorf("the second event through %s is %v", reader.name, e)
	}
	list := writer.get(t, collection+"?labelSelector=changed%3Dyes&fieldSelector=metadata.name%3D"+name)
	if items := list["items"].([]any); len(items) != 1 {
		t.Errorf("%s lists %d objects", writer.name, len(items))
	}
	exact := "?resourceVersionMatch=Exact&resourceVersion=" + metadata(created)["resourceVersion"].(string)
	mustEqual(t, "LIST at a revision", writer.get(t, collection+exact), reader.get(t, collection+exact))
	reader.delete(t, path)
	writer.mustBeGone(t, path)
}

// revisionOf returns the revision of a key.
func revisionOf(t *testing.T, etcd *clientv3.Client, key string) int64 {
	t.Helper()
	response, err := etcd.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Kvs) != 1 {
		t.Fatalf("%s is not in the etcd", key)
	}
	return response.Kvs[0].ModRevision
}

// haveTheSameChecks compares the names of the servers' checks of etcds.
func (both *servers) haveTheSameChecks(t *testing.T) {
	t.Helper()
	for _, endpoint := range []string{"/livez", "/readyz", "/healthz"} {
		if theirs, ours := etcdChecks(t, both.kubernetes, endpoint), etcdChecks(t, both.quorate, endpoint); theirs != ours {
			t.Errorf("checks of %s: %s, kube-apiserver has %s", endpoint, ours, theirs)
		}
	}
}

func etcdChecks(t *testing.T, s *server, endpoint string) string {
	t.Helper()
	_, report := s.answer(t, endpoint+"?verbose&exclude=etcd-readiness", "text/plain")
	var checks []string
	for line := range strings.Lines(string(report)) {
		if strings.Contains(line, "]etcd") {
			checks = append(checks, strings.TrimSpace(line))
		}
	}
	return strings.Join(checks, ", ")
}

// awaitCheck waits until a check has a status code on both servers.
func (both *servers) awaitCheck(t *testing.T, path string, want int) {
	t.Helper()
	for _, s := range []*server{both.kubernetes, both.quorate} {
		err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
			code, _ := s.answer(t, path, "text/plain")
			return code == want, nil
		})
		if err != nil {
			t.Errorf("%s: %s does not return %d", s.name, path, want)
		}
	}
}

// startEtcd runs an etcd.
func startEtcd(t *testing.T) (*upstream.EtcdServer, *clientv3.Client) {
	t.Helper()
	etcd, err := upstream.StartEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return etcd, client
}
