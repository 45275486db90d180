package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"quorate.dev/test/upstream"
)

// memoryLimit is the limit of the server in bytes. An idle server needs a quarter of it.
const memoryLimit = 512 << 20

// confine returns the command that runs another one in a new cgroup with a memory limit or, if this process may not
// create one, with the limit in GOMEMLIMIT.
func confine(t *testing.T) []string {
	t.Helper()
	for _, hierarchy := range []struct{ mount, controller, limit string }{
		{"/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "0::", "memory.max"},
	} {
		group, err := cgroup(hierarchy.mount, hierarchy.controller)
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) })
		if os.WriteFile(filepath.Join(group, hierarchy.limit), []byte(fmt.Sprint(memoryLimit)), 0) != nil {
			continue
		}
		return []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group}
	}
	t.Log("no cgroup can be created; the server has GOMEMLIMIT instead")
	return []string{"env", fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit*7/10)}
}

// cgroup creates a cgroup below this process's own.
func cgroup(mount, controller string) (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(own)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), controller); ok {
			return os.MkdirTemp(filepath.Join(mount, path), "limits-")
		}
	}
	return "", errors.New("no such hierarchy")
}

// TestHostileLoadDoesNotExhaustMemory sends many requests that take much memory to a server with little. The server
// must stay alive, and serve health checks and leases.
func TestHostileLoadDoesNotExhaustMemory(t *testing.T) {
	upstream.NeedsTime(t)
	s := start(t, nil, confine(t)...)
	value := map[string]string{"key": strings.Repeat("x\ny", 200_000)}
	for i := range 60 {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint(i)}, Data: value}
		if _, err := s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), object, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const users, each, rounds = 4, 10, 2
	var served, rejected, failed atomic.Int64
	var load sync.WaitGroup
	for i := range users {
		config := s.as(t, fmt.Sprint("user-", i))
		config.QPS = -1
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		for j := range each {
			load.Go(func() {
				for range rounds {
					switch code, err := request(t.Context(), client, config.Host, j); {
					case err != nil:
						failed.Add(1)
					case code == http.StatusTooManyRequests:
						rejected.Add(1)
					default:
						served.Add(1)
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); load.Wait() }()
	renewed := renew(t, s, done)
	t.Logf("%d requests served, %d rejected, %d ended early; the lease was renewed %d times; %d MiB at most",
		served.Load(), rejected.Load(), failed.Load(), renewed, s.memory(t, "VmHWM"))
	if served.Load() == 0 || renewed == 0 {
		t.Error("nothing was served")
	}
}

// request sends a costly request, whose verb and resource kind selects, and reads the response.
func request(ctx context.Context, client *http.Client, host string, kind int) (int, error) {
	const path = "/api/v1/namespaces/default/configmaps"
	method, target, body := http.MethodGet, host+path+"?pretty=true", io.Reader(nil)
	switch kind % 3 {
	case 1:
		target = host + path
	case 2:
		method, target = http.MethodPost, host+path+"?dryRun=All"
		body = strings.NewReader(`{"metadata":{"generateName":"a-"},"data":{"key":"` + strings.Repeat("x", 900_000) + `"}}`)
	}
	r, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return 0, err
	}
	if kind%3 == 0 {
		r.Header.Set("Accept", "application/yaml")
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// renew renews a lease and checks the health of the server until done is closed. It returns how often.
func renew(t *testing.T, s *server, done <-chan struct{}) (times int) {
	t.Helper()
	node, err := kubernetes.NewForConfig(s.as(t, "elector"))
	if err != nil {
		t.Fatal(err)
	}
	leases := node.CoordinationV1().Leases("default")
	lease, err := leases.Create(t.Context(), &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: "lease"}},
		meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case <-done:
			return times
		case <-s.Ended():
			t.Fatal("the server has ended")
		default:
		}
		lease.Spec.LeaseTransitions = ptr.To(int32(times))
		if lease, err = leases.Update(t.Context(), lease, meta.UpdateOptions{}); err != nil {
			t.Fatalf("renewal %d: %v", times, err)
		}
		if code, _, err := get(t.Context(), s.anonymous(), s.Admin.Host+"/livez"); err != nil || code != http.StatusOK {
			t.Fatalf("the server is not alive: %d, %v", code, err)
		}
		times++
	}
}
