package compatibility

import (
	"context"
	"net/http"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

const (
	apiServices    = "/apis/apiregistration.k8s.io/v1/apiservices"
	apiServiceKeys = "/registry/apiregistration.k8s.io/apiservices/"
	// customAPIService is the APIService of the custom resources of these tests.
	customAPIService = "v1.example.com"
)

// TestAPIServicesAreAlike checks that the server that starts second finds the APIServices up to date: it adds, changes
// and removes none.
func TestAPIServicesAreAlike(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	starts := map[string]func(context.Context, upstream.Options) (*upstream.APIServer, error){
		"kube-apiserver": upstream.StartKubernetes, "quorate": upstream.StartQuorate,
	}
	for _, order := range [][]string{{"kube-apiserver", "quorate"}, {"quorate", "kube-apiserver"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			_, options := upstream.NewOptions(t)
			options.Arguments = []string{"--runtime-config=api/all=true"}
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{options.Etcd}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			// after returns the stored APIServices when a server has done something that follows its start-up.
			after := func(name string, something func(*server)) map[string]int64 {
				process, err := starts[name](t.Context(), options)
				if err != nil {
					t.Fatal(err)
				}
				process.StopAfter(t)
				something(newServer(t, name, process.Admin))
				if err := process.Stop(); err != nil {
					t.Fatal(err)
				}
				return revisions(t, client)
			}
			first := after(order[0], func(s *server) {
				s.create(t, definitions, definition("registereds", "Registered"))
				s.awaitAPIService(t, http.StatusOK)
			})
			second := after(order[1], func(s *server) {
				s.delete(t, definitions+"/registereds.example.com")
				s.awaitAPIService(t, http.StatusNotFound)
			})
			const beta = apiServiceKeys + "v1beta1.resource.k8s.io"
			if first[beta] == 0 {
				t.Errorf("%s has not registered a beta version that is switched on", order[0])
			}
			delete(first, apiServiceKeys+customAPIService)
			mustEqual(t, "the revisions of APIServices after the second start", first, second)
		})
	}
}

// awaitAPIService waits until the custom resource is served (200) or not served (404).
func (s *server) awaitAPIService(t *testing.T, want int) {
	t.Helper()
	var last int
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(
		ctx context.Context,
	) (bool, error) {
		last, _, _ = s.call(ctx, http.MethodGet, apiServices+"/"+customAPIService, "", nil)
		return last == want, nil
	})
	if err != nil {
		t.Fatalf("%s answers %d for %s, not %d: %v", s.name, last, customAPIService, want, err)
	}
}

// revisions returns the revisions of all APIServices by key.
func revisions(t *testing.T, client *clientv3.Client) map[string]int64 {
	t.Helper()
	response, err := client.Get(t.Context(), apiServiceKeys, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, kv := range response.Kvs {
		found[string(kv.Key)] = kv.ModRevision
	}
	return found
}

// TestAPIServicesOfOneEtcd checks that both servers reconcile the APIService of a custom resource at the same time
// without conflicting writes.
func TestAPIServicesOfOneEtcd(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	both := startServers(t)
	writes := both.etcd.Watch(t.Context(), apiServiceKeys, clientv3.WithPrefix(), clientv3.WithRev(1))
	builtin := revisions(t, both.etcd)
	for _, writer := range []*server{both.kubernetes, both.quorate} {
		for _, other := range []*server{both.quorate, both.kubernetes} {
			both.keepAPIService(t, writer, other)
		}
	}
	mustEqual(t, "the revisions of built-in APIServices", builtin, revisions(t, both.etcd))

	// The test makes the last write. When that has been observed, all earlier writes have been observed as well.
	const last = apiServiceKeys + "last"
	response, err := both.etcd.Put(t.Context(), last, "{}")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for answer := range writes {
		for _, e := range answer.Events {
			counts[string(e.Kv.Key)]++
		}
		if answer.Header.Revision >= response.Header.Revision {
			break
		}
	}
	const custom = apiServiceKeys + customAPIService
	// Six changes: created, edited, edit reverted, deleted, created again, deleted. A server that observes the deletion
	// of the definition after the deletion of the APIService creates the APIService and deletes it again.
	if rounds := 4; counts[custom] < 6*rounds || counts[custom] > 10*rounds {
		t.Errorf("%d writes of the custom APIService, want 24 to 40", counts[custom])
	}
}

// keepAPIService creates the definition of a custom resource through one server, and changes its APIService through the
// other.
func (both *servers) keepAPIService(t *testing.T, writer, other *server) {
	t.Helper()
	const path = apiServices + "/" + customAPIService
	await := func(what string, holds func(status int, service object) bool) {
		t.Helper()
		for _, s := range []*server{both.kubernetes, both.quorate} {
			err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(
				ctx context.Context,
			) (bool, error) {
				status, answer, err := s.call(ctx, http.MethodGet, path, "", nil)
				return err == nil && holds(status, answer), nil
			})
			if err != nil {
				t.Fatalf("%s, defined through %s, disturbed through %s: %s: %v", s.name, writer.name, other.name, what, err)
			}
		}
	}
	both.define(t, writer, "registereds", "Registered")
	await("it is made", func(status int, _ object) bool { return status == http.StatusOK })
	other.patch(t, path, `{"spec":{"versionPriority":3}}`)
	await("the edit is undone", func(_ int, service object) bool {
		spec, _ := service["spec"].(map[string]any)
		return spec["versionPriority"] == float64(100)
	})
	uid := metadata(other.get(t, path))["uid"]
	other.delete(t, path)
	await("it is made again", func(status int, service object) bool {
		return status == http.StatusOK && metadata(service)["uid"] != uid
	})
	writer.delete(t, definitions+"/registereds.example.com")
	await("it goes", func(status int, _ object) bool { return status == http.StatusNotFound })
}
