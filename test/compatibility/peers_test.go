package compatibility

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

const (
	allDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	ownDiscovery = allDiscovery + ";profile=nopeer"
	leaseOfPeers = "/registry/peerserverleases/"
)

// starter is a function that starts one of the two servers.
type starter func(context.Context, upstream.Options) (*upstream.APIServer, error)

// onHost returns a starter of a server with a host name, from which the identity of a replica is derived.
func onHost(t *testing.T, host string, start starter) starter {
	t.Helper()
	namespaces := []string{"--uts"}
	if os.Geteuid() != 0 {
		namespaces = append(namespaces, "--user", "--map-root-user")
	}
	command := append(append([]string{"unshare"}, namespaces...), "sh", "-c", `hostname "$0" && exec "$@"`, host)
	if output, err := exec.CommandContext(
		t.Context(), command[0], append(command[1:], "true")...,
	).CombinedOutput(); err != nil {
		t.Skipf("two servers on one machine need a UTS namespace: %v: %s", err, output)
	}
	return func(ctx context.Context, options upstream.Options) (*upstream.APIServer, error) {
		options.Wrapper = command
		return start(ctx, options)
	}
}

// passedOn is a resource that one of the replicas does not serve, so that it forwards requests.
type passedOn struct{ group, version, collection, resource, body string }

var (
	jobs = passedOn{
		"batch", "v1", "/apis/batch/v1/namespaces/default/jobs", "jobs",
		`{"metadata":{"name":"one"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`,
	}
	budgets = passedOn{
		"policy", "v1", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", "poddisruptionbudgets",
		`{"metadata":{"name":"one"},"spec":{"minAvailable":1}}`,
	}
)

// disabled returns the flag with which a replica does not serve the resource.
func (p passedOn) disabled() string {
	return "--runtime-config=" + p.group + "/" + p.version + "=false"
}

// TestPeers runs two replicas on one etcd. Each serves a group that the other does not serve.
func TestPeers(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for name, second := range map[string]starter{
		"quorate": upstream.StartQuorate, "kube-apiserver": upstream.StartKubernetes,
	} {
		t.Run(name, func(t *testing.T) { testPeers(t, upstream.StartQuorate, onHost(t, "peer-two", second)) })
	}
}

func testPeers(t *testing.T, startFirst, startSecond starter) {
	_, shared := upstream.NewOptions(t)
	arguments, err := shared.PKI.WriteFrontProxy()
	if err != nil {
		t.Fatal(err)
	}
	arguments = append(arguments, "--peer-ca-file="+filepath.Join(shared.Directory, "pki", "serving-ca.crt"))
	run := func(name string, start starter, further ...string) *server {
		process, err := start(t.Context(), upstream.Options{
			Directory: filepath.Join(shared.Directory, name), PKI: shared.PKI, Etcd: shared.Etcd,
			Arguments: append(arguments, further...),
		})
		if err != nil {
			t.Fatal(err)
		}
		process.StopAfter(t)
		return newServer(t, name, process.Admin)
	}
	first := run("first", startFirst, jobs.disabled())
	if status, _, _ := first.call(t.Context(), http.MethodGet, jobs.collection, "", nil); status != http.StatusNotFound {
		t.Errorf("jobs are served without a peer: %d", status)
	}
	second := run("second", startSecond, budgets.disabled())
	for _, s := range []*server{first, second} {
		s.awaitServed(t, jobs.collection)
		s.awaitServed(t, budgets.collection)
	}
	jobs.use(t, first, second)
	budgets.use(t, second, first)
	compareDiscovery(t, first, second)
	checkLeases(t, shared.Etcd)
}

// use writes and watches the resource through the replica that does not serve it.
func (p passedOn) use(t *testing.T, through, serving *server) {
	t.Helper()
	next := through.watch(t, p.collection, "one")
	through.create(t, p.collection, p.body)
	if e := next(); e.Type != "ADDED" {
		t.Errorf("the watch returned %v", e)
	}
	created := serving.get(t, p.collection+"/one")
	managed := created["metadata"].(map[string]any)["managedFields"].([]any)[0].(map[string]any)["manager"]
	if managed != "compatibility" {
		t.Errorf("the manager of the fields is %v", managed)
	}
	response := through.getAs(t, p.collection+"/one", "application/vnd.kubernetes.protobuf")
	response.Body.Close()
	if got := response.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf" {
		t.Errorf("the content type is %s", got)
	}
	// The forwarded request must have the user of the client, not of the server.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, through.host+p.collection, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Impersonate-User", "unprivileged")
	if response, err = through.http.Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a user without permission got %s", response.Status)
	}
	// A request that has been forwarded is not forwarded again. A request for a resource that no replica serves is not
	// forwarded either.
	request.Header = http.Header{"X-Kubernetes-Peer-Proxied": {"true"}}
	if response, err = through.http.Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	none, _, _ := through.call(t.Context(), http.MethodGet, "/apis/"+p.group+"/"+p.version+"/none", "", nil)
	if response.StatusCode != http.StatusNotFound || none != http.StatusNotFound {
		t.Errorf("got %s and %d", response.Status, none)
	}
	counter := fmt.Sprintf("apiserver_rerouted_request_total{code=%q,group=%q,resource=%q,version=%q} 1", "201",
		p.group, p.resource, p.version)
	if _, metrics := through.answer(t, "/metrics", "*/*"); !bytes.Contains(metrics, []byte(counter)) {
		t.Errorf("metrics lack %s", counter)
	}
	for _, hook := range []string{
		"peer-endpoint-reconciler-controller", "mixed-version-proxy-handler",
		"local-discovery-cache-sync", "peer-discovery-workers",
	} {
		if status, answer := through.answer(t, "/readyz/poststarthook/"+hook, "*/*"); status != http.StatusOK {
			t.Errorf("%s: %d %s", hook, status, answer)
		}
	}
}

// compareDiscovery checks that both replicas list every resource that either of them serves.
func compareDiscovery(t *testing.T, first, second *server) {
	t.Helper()
	documents := map[*server][]byte{}
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		for _, s := range []*server{first, second} {
			_, documents[s] = s.answer(t, "/apis", allDiscovery)
		}
		return bytes.Equal(documents[first], documents[second]), nil
	})
	if err != nil {
		t.Errorf("aggregated discovery differs:\n%.2000s\n%.2000s", documents[first], documents[second])
	}
	for _, group := range []string{jobs.group, budgets.group} {
		if !slices.Contains(groupsOf(t, documents[first]), group) {
			t.Errorf("%s is not listed", group)
		}
	}
	_, own := first.answer(t, "/apis", ownDiscovery)
	if slices.Contains(groupsOf(t, own), jobs.group) || !slices.Contains(groupsOf(t, own), budgets.group) {
		t.Errorf("without peers, the groups are %v", groupsOf(t, own))
	}
}

func groupsOf(t *testing.T, document []byte) []string {
	t.Helper()
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal(document, &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, group := range list.Items {
		names = append(names, group.Metadata.Name)
	}
	return names
}

// checkLeases checks that both replicas have published an address.
func checkLeases(t *testing.T, endpoint string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	response, err := client.Get(t.Context(), leaseOfPeers, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, kv := range response.Kvs {
		found = append(found, fmt.Sprintf("%s %q", strings.TrimPrefix(string(kv.Key), leaseOfPeers), kv.Value))
	}
	if len(found) != 2 || !strings.Contains(found[0], "127.0.0.1") || !strings.Contains(found[1], "127.0.0.1") {
		t.Errorf("the addresses are %s", strings.Join(found, "\n"))
	}
}
