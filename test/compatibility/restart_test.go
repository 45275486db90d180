package compatibility

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// definitionsAtRestart is the number of definitions that a restarted server reads.
const definitionsAtRestart = 400

// TestRestartWithDefinitions starts a server with many definitions while etcd is suspended, as if etcd had lost its
// quorum. Until the server has read the definitions, it must not respond with 404 to requests that depend on them:
// clients would take that for a missing object, and a garbage collector for a deletion.
func TestRestartWithDefinitions(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	etcd, options := upstream.NewOptions(t)
	storeDefinitions(t, etcd.Endpoint)
	suspend(t, etcd)
	options.Answers = "/livez/ping"
	process, err := upstream.StartQuorate(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, "quorate", process.Admin)
	for _, path := range []string{
		customPath(0), "/apis/group-0.example.com", "/apis/group-0.example.com/v1", "/apis", "/apis/", "/nowhere",
		"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/group-0.example.com/v1", "/apis/none.example.com/v1/things",
		"/apis/apps/v1/deployments", // may belong to an extension API server
	} {
		s.mustBeUnavailable(t, path, "application/json")
	}
	s.mustBeUnavailable(t, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	for _, path := range []string{"/api", "/api/v1", "/apis/apps", "/apis/apps/v1", "/version"} {
		if code, answer := s.answer(t, path, "application/json"); code != http.StatusOK {
			t.Errorf("%s, which definitions do not change: %d %.300s", path, code, answer)
		}
	}
	resume(t, etcd)
	resumed := time.Now()
	s.awaitDefinitions(t)
	t.Logf("%d definitions were known after %v", definitionsAtRestart, time.Since(resumed))
	for i := range definitionsAtRestart {
		if code, answer := s.answer(t, customPath(i), "application/json"); code != http.StatusOK {
			t.Errorf("%s: %d %.300s", customPath(i), code, answer)
		}
	}
	for _, path := range []string{"/apis/none.example.com/v1/things", "/nowhere"} {
		if code, _ := s.answer(t, path, "application/json"); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// customPath returns the path of a custom resource.
func customPath(i int) string {
	return fmt.Sprintf("/apis/group-%d.example.com/v1/namespaces/default/things/thing", i)
}

// storeDefinitions writes established definitions, each with a custom resource, in the form in which servers store
// them.
func storeDefinitions(t *testing.T, endpoint string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range definitionsAtRestart {
		group := fmt.Sprintf("group-%d.example.com", i)
		const names = `{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"}`
		definition := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
			"metadata":{"name":"things.%[1]s","uid":"%08[2]d-0000-4000-8000-000000000000","generation":1},
			"spec":{"group":"%[1]s","scope":"Namespaced","names":%[3]s,"conversion":{"strategy":"None"},"versions":[
				{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]},
			"status":{"acceptedNames":%[3]s,"storedVersions":["v1"],"conditions":[
				{"type":"NamesAccepted","status":"True","reason":"NoConflicts","message":"no conflicts found"},
				{"type":"Established","status":"True","reason":"InitialNamesAccepted"}]}}`, group, i, names)
		thing := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"thing","namespace":"default"}}`, group)
		_, err := client.Txn(t.Context()).Then(
			clientv3.OpPut("/registry/apiextensions.k8s.io/customresourcedefinitions/things."+group, definition),
			clientv3.OpPut("/registry/"+group+"/things/default/thing", thing),
		).Commit()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// suspend suspends etcd until the returned function is called.
func suspend(t *testing.T, etcd *upstream.EtcdServer) {
	t.Helper()
	if err := syscall.Kill(etcd.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(etcd.PID, syscall.SIGCONT) })
}

func resume(t *testing.T, etcd *upstream.EtcdServer) {
	t.Helper()
	if err := syscall.Kill(etcd.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// answer returns the status code and the body of the response to a GET request.
func (s *server) answer(t *testing.T, path, accept string) (int, []byte) {
	t.Helper()
	response := s.getAs(t, path, accept)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body
}

func (s *server) getAs(t *testing.T, path, accept string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := s.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// mustBeUnavailable checks that a response is byte for byte kube-apiserver's.
func (s *server) mustBeUnavailable(t *testing.T, path, accept string) {
	t.Helper()
	response := s.getAs(t, path, accept)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
		`"message":"the request has been made before all known HTTP paths have been installed, please try again",` +
		`"reason":"ServiceUnavailable","details":{"retryAfterSeconds":5},"code":503}`
	var got bytes.Buffer
	if err := json.Compact(&got, body); err != nil || got.String() != want ||
		response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "5" {
		t.Errorf("%s: %s, Retry-After %q, %.500s", path, response.Status, response.Header.Get("Retry-After"), body)
	}
}

// awaitDefinitions waits until a custom resource is served. Until then the resource must not be missing in any
// response, including the lists of groups.
func (s *server) awaitDefinitions(t *testing.T) {
	t.Helper()
	last := definitionsAtRestart - 1
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		code, groups := s.answer(t, "/apis", "application/json")
		if code == http.StatusOK {
			var list struct{ Groups []struct{ Name string } }
			if err := json.Unmarshal(groups, &list); err != nil {
				return false, err
			}
			if len(list.Groups) <= definitionsAtRestart {
				return false, fmt.Errorf("there are %d groups", len(list.Groups))
			}
		}
		code, answer := s.answer(t, customPath(last), "application/json")
		if code == http.StatusNotFound {
			return false, fmt.Errorf("%.300s", answer)
		}
		return code == http.StatusOK, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
