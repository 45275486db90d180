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

	"k8s.io/apimachinery/pkg/util/wait"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/test/upstream"
)

const (
	allDiscovery  = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	ownDiscovery  = allDiscovery + ";profile=nopeer"
	jobs          = "/apis/batch/v1/namespaces/default/jobs"
	leaseOfPeers  = "/registry/peerserverleases/"
	peerTwoserver = "peer-two"
)

// starter starts one of the two servers.
type starter func(context.Context, upstream.Options) (*upstream.APIServer, error)

// onAnotherHost returns a starter whose server has another host name: replicas are told apart by it.
func onAnotherHost(t *testing.T, start starter) starter {
	t.Helper()
	namespaces := []string{"--uts"}
	if os.Geteuid() != 0 {
		namespaces = append(namespaces, "--user", "--map-root-user")
	}
	command := append(append([]string{"unshare"}, namespaces...), "sh", "-c", "hostname "+peerTwoserver+` && exec "$@"`, "sh")
	if output, err := exec.CommandContext(t.Context(), command[0], append(command[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("two servers on one machine need a UTS namespace: %v: %s", err, output)
	}
	return func(ctx context.Context, options upstream.Options) (*upstream.APIServer, error) {
		options.Wrapper = command
		return start(ctx, options)
	}
}

// TestPeers runs two replicas on one etcd, of which the first does not serve a group.
func TestPeers(t *testing.T) {
	upstream.NeedsProcesses(t)
	for name, of := range map[string]struct{ first, second starter }{
		"both quorate":                        {upstream.StartQuorate, upstream.StartQuorate},
		"quorate passes on to kube-apiserver": {upstream.StartQuorate, upstream.StartKubernetes},
		"kube-apiserver passes on to quorate": {upstream.StartKubernetes, upstream.StartQuorate},
		"kube-apiserver, for comparison":      {upstream.StartKubernetes, upstream.StartKubernetes},
	} {
		t.Run(name, func(t *testing.T) { testPeers(t, of.first, onAnotherHost(t, of.second)) })
	}
}

func testPeers(t *testing.T, startFirst, startSecond starter) {
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	arguments, err := pki.WriteFrontProxy()
	if err != nil {
		t.Fatal(err)
	}
	arguments = append(arguments, "--peer-ca-file="+filepath.Join(directory, "pki", "serving-ca.crt"))
	run := func(name string, start starter, further ...string) *server {
		process, err := start(t.Context(), upstream.Options{
			Directory: filepath.Join(directory, name), PKI: pki, Etcd: etcd.Endpoint, Arguments: append(arguments, further...),
		})
		if err != nil {
			t.Fatal(err)
		}
		process.StopAfter(t)
		return newServer(t, name, process.Admin)
	}
	first := run("first", startFirst, "--runtime-config=batch/v1=false")
	if status, _, _ := first.call(t.Context(), http.MethodGet, jobs, "", nil); status != http.StatusNotFound {
		t.Errorf("jobs are served without a peer: %d", status)
	}
	second := run("second", startSecond, "--runtime-config=events.k8s.io/v1=false")
	first.awaitServed(t, jobs)
	second.awaitServed(t, "/apis/events.k8s.io/v1/events")
	usePeer(t, first, second)
	compareDiscovery(t, first, second)
	checkLeases(t, etcd.Endpoint)
}

// usePeer writes and watches through the replica that does not serve the resource.
func usePeer(t *testing.T, first, second *server) {
	t.Helper()
	next := first.watch(t, jobs, "job")
	first.create(t, jobs, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"job"},"spec":{"template":{"spec":
		{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`)
	if e := next(); e.Type != "ADDED" {
		t.Errorf("the watch returned %v", e)
	}
	created := second.get(t, jobs+"/job")
	managed := created["metadata"].(map[string]any)["managedFields"].([]any)[0].(map[string]any)["manager"]
	if managed != "compatibility" {
		t.Errorf("the manager of the fields is %v", managed)
	}
	response := first.getAs(t, jobs+"/job", "application/vnd.kubernetes.protobuf")
	response.Body.Close()
	if got := response.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf" {
		t.Errorf("the content type is %s", got)
	}
	// The user is the client's, not the server's.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, first.host+jobs, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Impersonate-User", "unprivileged")
	if response, err = first.http.Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a user without permission got %s", response.Status)
	}
	// A request that was passed on once is not passed on again, and neither is one for what no replica serves.
	request.Header = http.Header{"X-Kubernetes-Peer-Proxied": {"true"}}
	if response, err = first.http.Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	none, _, _ := first.call(t.Context(), http.MethodGet, "/apis/batch/v1/none", "", nil)
	if response.StatusCode != http.StatusNotFound || none != http.StatusNotFound {
		t.Errorf("got %s and %d", response.Status, none)
	}
	counter := `apiserver_rerouted_request_total{code="201",group="batch",resource="jobs",version="v1"} 1`
	if _, metrics := first.answer(t, "/metrics", "*/*"); !bytes.Contains(metrics, []byte(counter)) {
		t.Errorf("metrics lack %s", counter)
	}
	for _, hook := range []string{
		"peer-endpoint-reconciler-controller", "mixed-version-proxy-handler", "local-discovery-cache-sync", "peer-discovery-workers",
	} {
		if status, answer := first.answer(t, "/readyz/poststarthook/"+hook, "*/*"); status != http.StatusOK {
			t.Errorf("%s: %d %s", hook, status, answer)
		}
	}
}

// compareDiscovery checks that both replicas list what either serves.
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
	for _, group := range []string{"batch", "events.k8s.io"} {
		if !slices.Contains(groupsOf(t, documents[first]), group) {
			t.Errorf("%s is not listed", group)
		}
	}
	_, own := first.answer(t, "/apis", ownDiscovery)
	if slices.Contains(groupsOf(t, own), "batch") || !slices.Contains(groupsOf(t, own), "events.k8s.io") {
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
	t.Logf("addresses:\n%s", strings.Join(found, "\n"))
}
