package compatibility

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// TestServicesOfOneEtcd allocates addresses and ports for Services through both servers at the same time. Each Service
// must get different ones. Both servers are endpoints of the Service kubernetes while they run.
func TestServicesOfOneEtcd(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	common := []string{
		"--endpoint-reconciler-type=lease", "--service-cluster-ip-range=10.0.0.0/26", "--service-node-port-range=30000-30039",
	}
	both := startServersWith(t, append(common, "--advertise-address=192.0.2.21"),
		append(common, "--advertise-address=192.0.2.22"))
	t.Run("concurrent", func(t *testing.T) { both.giveAll(t, 40) })
	t.Run("bytes", func(t *testing.T) { both.keepPortsAlike(t) })
	t.Run("endpoints", func(t *testing.T) { both.leaveKubernetesService(t) })
}

// giveAll creates Services with node ports through both servers concurrently.
func (both *servers) giveAll(t *testing.T, count int) {
	var group sync.WaitGroup
	var mu sync.Mutex
	owners := map[string]string{}
	for i := range count {
		through := []*server{both.kubernetes, both.quorate}[i%2]
		group.Go(func() {
			name := fmt.Sprintf("web-%d", i)
			status, answer, err := through.call(t.Context(), http.MethodPost,
				"/api/v1/namespaces/default/services", "application/json",
				[]byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"`+name+
					`"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`))
			if err != nil || status != http.StatusCreated {
				t.Errorf("%s: %s: %d %v %v", through.name, name, status, answer["message"], err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, thing := range holdings(answer) {
				if other, taken := owners[thing]; taken {
					t.Errorf("%s is given to %s and %s", thing, other, name)
				}
				owners[thing] = name
			}
		})
	}
	group.Wait()
}

// holdings returns the cluster IP and the node port of a Service.
func holdings(service object) []string {
	spec := service["spec"].(map[string]any)
	port := spec["ports"].([]any)[0].(map[string]any)["nodePort"]
	return []string{spec["clusterIP"].(string), fmt.Sprint(port)}
}

// keepPortsAlike compares the data about node ports that the servers store.
func (both *servers) keepPortsAlike(t *testing.T) {
	stored := func() string {
		response, err := both.etcd.Get(t.Context(), "/registry/ranges/servicenodeports")
		if err != nil || len(response.Kvs) != 1 {
			t.Fatalf("%v %v", response, err)
		}
		return string(response.Kvs[0].Value)
	}
	for _, name := range []string{"web-0", "web-1", "web-2"} {
		path := "/api/v1/namespaces/default/services/" + name
		service := both.kubernetes.get(t, path)
		body := fmt.Sprintf(
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":%s}]}}`, name, holdings(service)[1],
		)
		full := stored()
		both.quorate.delete(t, path)
		without := stored()
		both.kubernetes.create(t, "/api/v1/namespaces/default/services", body)
		if got := stored(); got != full {
			t.Errorf("all ports, by kube-apiserver and by both:\n%q\n%q", got, full)
		}
		both.kubernetes.delete(t, path)
		if got := stored(); got != without {
			t.Errorf("without that of %s, by kube-apiserver and by quorate:\n%q\n%q", name, got, without)
		}
		both.quorate.create(t, "/api/v1/namespaces/default/services", body)
		if got := stored(); got != full {
			t.Errorf("all ports, by quorate and by both:\n%q\n%q", got, full)
		}
	}
}

// leaveKubernetesService waits until both servers are endpoints of the Service kubernetes, and then stops one.
func (both *servers) leaveKubernetesService(t *testing.T) {
	both.awaitEndpoints(t, "192.0.2.21", "192.0.2.22")
	leases, err := both.etcd.Get(t.Context(), "/registry/masterleases/192.0.2.21")
	if err != nil {
		t.Fatal(err)
	}
	own, err := both.etcd.Get(t.Context(), "/registry/masterleases/192.0.2.22")
	if err != nil {
		t.Fatal(err)
	}
	// The entries differ in the address, and in the number of renewals, which is one byte.
	theirs, ours := string(leases.Kvs[0].Value), strings.ReplaceAll(string(own.Kvs[0].Value), "192.0.2.22", "192.0.2.21")
	const renewals = "*\x002\x008"
	head, tail, _ := strings.Cut(theirs, renewals)
	ourHead, ourTail, _ := strings.Cut(ours, renewals)
	if head != ourHead || tail == "" || ourTail == "" || tail[1:] != ourTail[1:] {
		t.Errorf("entries of replicas, kube-apiserver's and quorate's:\n%q\n%q", theirs, ours)
	}
	if err := both.process.Stop(); err != nil {
		t.Fatal(err)
	}
	both.awaitEndpoints(t, "192.0.2.21")
}

func (both *servers) awaitEndpoints(t *testing.T, wanted ...string) {
	t.Helper()
	var got, ready []string
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		got, ready = nil, nil
		endpoints := both.kubernetes.get(t, "/api/v1/namespaces/default/endpoints/kubernetes")
		if subsets, ok := endpoints["subsets"].([]any); ok && len(subsets) == 1 {
			for _, address := range subsets[0].(map[string]any)["addresses"].([]any) {
				got = append(got, address.(map[string]any)["ip"].(string))
			}
		}
		slice := both.kubernetes.get(t, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
		if endpoints, ok := slice["endpoints"].([]any); ok {
			for _, endpoint := range endpoints {
				ready = append(ready, endpoint.(map[string]any)["addresses"].([]any)[0].(string))
			}
		}
		slices.Sort(got)
		slices.Sort(ready)
		return slices.Equal(got, wanted) && slices.Equal(ready, wanted), nil
	})
	if err != nil {
		t.Errorf("endpoints %v and slice %v, want %v: %v", got, ready, wanted, err)
	}
}
