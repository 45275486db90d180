package peers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/storage"
)

var (
	jobs   = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	pods   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// serve runs a peer that serves resources. Its discovery fails until healthy is closed.
func serve(t *testing.T, healthy <-chan struct{}, resources ...schema.GroupVersionResource) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api" && r.URL.Path != "/apis" {
			fmt.Fprintf(w, "%s as %s of %v, passed on: %s", r.URL, r.Header.Get("X-Remote-User"),
				r.Header.Values("X-Remote-Group"), r.Header.Get(proxiedHeader))
			return
		}
		select {
		case <-healthy:
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if accepted, _, _ := strings.Cut(r.Header.Get("Accept"), ","); !strings.HasSuffix(accepted, ";profile=nopeer") {
			t.Errorf("discovery of the peer's peers is requested: %s", accepted)
		}
		list := discoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"}}
		for _, resource := range resources {
			if (resource.Group == "") == (r.URL.Path == "/api") {
				list.Items = append(list.Items, groupOf(resource))
			}
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	return server
}

func groupOf(resource schema.GroupVersionResource) discoveryv2.APIGroupDiscovery {
	return discoveryv2.APIGroupDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: resource.Group}, Versions: []discoveryv2.APIVersionDiscovery{{
			Version: resource.Version, Resources: []discoveryv2.APIResourceDiscovery{{Resource: resource.Resource}},
		}},
	}
}

// identities are the holders of leases.
type identities struct {
	sync.Mutex
	holders map[string]string
}

func (i *identities) list(context.Context) (map[string]string, error) {
	i.Lock()
	defer i.Unlock()
	listed := map[string]string{}
	for id, holder := range i.holders {
		listed[id] = holder
	}
	return listed, nil
}

func (i *identities) set(id, holder string) {
	i.Lock()
	defer i.Unlock()
	if holder == "" {
		delete(i.holders, id)
		return
	}
	i.holders[id] = holder
}

// replica is a running Peers.
type replica struct {
	*Peers
	identities *identities
	leases     *Leases
}

func start(t *testing.T, c clock.WithTicker) *replica {
	t.Helper()
	leases, err := NewLeases(storage.New(etcdtest.Client(t), "/registry"))
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{identities: &identities{holders: map[string]string{"self": "x"}}, leases: leases}
	r.Peers = New(Options{
		ID: "self", Leases: leases, Identities: r.identities.list,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		Serves:    func(resource schema.GroupVersionResource) bool { return resource == pods },
		Clock:     c, Logger: logr.Discard(), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	synced := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx, sync.OnceFunc(func() { close(synced) })) // it has no error
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	<-synced
	return r
}

func (r *replica) publish(t *testing.T, id string, server *httptest.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.leases.renew(t.Context(), id, host, int32(number)); err != nil {
		t.Fatal(err)
	}
}

// await waits until the peers that serve a resource have the wanted IDs.
func (r *replica) await(t *testing.T, resource schema.GroupVersionResource, ids ...string) {
	t.Helper()
	const patience = time.Minute
	deadline := time.After(patience)
	for !slices.Equal(r.Current().serving(resource), ids) {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("%v is served by %v, want %v", resource, r.Current().serving(resource), ids)
		}
	}
}

// get sends a request for a resource as a user, and returns the response.
func (r *replica) get(t *testing.T, resource schema.GroupVersionResource, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	q := httptest.NewRequest(http.MethodGet, "/apis/"+resource.Group+"/"+resource.Version+"/"+resource.Resource+"?limit=1",
		nil)
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	record := request.Begin(q, time.Now(), logr.Discard())
	if err := record.Resolve(q.Method); err != nil {
		t.Fatal(err)
	}
	record.User = &user.DefaultInfo{Name: "jane", Groups: []string{"team"}}
	w := httptest.NewRecorder()
	local := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "local") })
	r.Handler(local).ServeHTTP(w, q.WithContext(record))
	return w
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestRequests(t *testing.T) {
	r := start(t, clock.RealClock{})
	r.identities.set("other", "process-1")
	r.publish(t, "other", serve(t, closed(), jobs, pods))
	r.Changed()
	r.await(t, jobs, "other")
	const want = "/apis/batch/v1/jobs?limit=1 as jane of [team], passed on: true"
	if got := r.get(t, jobs, "X-Remote-User", "root", "X-Remote-Group", "system:masters"); got.Body.String() != want {
		t.Errorf("got %s, want %s", got.Body, want)
	}
	for name, got := range map[string]*httptest.ResponseRecorder{
		"served here": r.get(t, pods), "not served": r.get(t, things), "passed on": r.get(t, jobs, proxiedHeader, "true"),
	} {
		if got.Body.String() != "local" {
			t.Errorf("%s: got %s", name, got.Body)
		}
	}
	if err := r.leases.remove(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if got := r.get(t, jobs); got.Code != http.StatusServiceUnavailable ||
		!strings.Contains(got.Body.String(), "Error getting ip and port info of the remote server while proxying") {
		t.Errorf("without an address: %d %s", got.Code, got.Body)
	}
	if got := testutil.ToFloat64(r.metrics.errors.WithLabelValues(errorEndpoint, "batch", "v1", "jobs")); got != 1 {
		t.Errorf("%v errors are counted", got)
	}
	if got := testutil.ToFloat64(r.metrics.rerouted.WithLabelValues("200", "batch", "v1", "jobs")); got != 1 {
		t.Errorf("%v requests are counted", got)
	}
}

// TestUpgrade upgrades a connection through a peer, which must know the user.
func TestUpgrade(t *testing.T) {
	r := start(t, clock.RealClock{})
	peer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n%s as %s",
			r.URL, r.Header.Get("X-Remote-User"))
	}))
	defer peer.Close()
	r.publish(t, "other", peer)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		record := request.Begin(q, time.Now(), logr.Discard())
		record.User = &user.DefaultInfo{Name: "jane"}
		r.forward(w, q.WithContext(record), peer.Listener.Addr().String(), jobs)
	}))
	defer front.Close()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/path", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Connection", "Upgrade")
	q.Header.Set("Upgrade", "test")
	q.Header.Set("X-Remote-User", "root")
	response, err := front.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols || string(body) != "/path as jane" {
		t.Errorf("%s: %s, %v", response.Status, body, err)
	}
}

// TestPeersComeAndGo starts a peer whose discovery and address are not available at first.
func TestPeersComeAndGo(t *testing.T) {
	r := start(t, clock.RealClock{})
	r.identities.set("late", "process-1")
	r.Changed()
	healthy := make(chan struct{})
	server := serve(t, healthy, jobs)
	r.publish(t, "late", server)
	server.Close() // no connection
	r.Changed()
	r.publish(t, "late", serve(t, healthy, jobs))
	close(healthy)
	r.await(t, jobs, "late")
	r.publish(t, "late", serve(t, closed(), things))
	r.identities.set("late", "process-2")
	r.Changed()
	r.await(t, jobs)
	r.await(t, things, "late")
	r.identities.set("late", "")
	r.Changed()
	r.await(t, things)
	if r.Current() != nil {
		t.Error("there is no peer, and the set is not nil")
	}
}

// TestExclusions deletes a definition, whose resource peers may list for a while.
func TestExclusions(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := start(t, fake)
	r.identities.set("other", "process")
	r.publish(t, "other", serve(t, closed(), things, jobs))
	r.SetGroupVersions("definition", []schema.GroupVersion{things.GroupVersion()})
	r.SetGroupVersions("service", []schema.GroupVersion{things.GroupVersion()})
	r.Changed()
	r.await(t, jobs, "other")
	excluded := func(want bool) {
		t.Helper()
		set := r.Current()
		listed := slices.ContainsFunc(set.Peers[0].Groups, func(g discoveryv2.APIGroupDiscovery) bool {
			return g.Name == things.Group
		})
		if (len(set.serving(things)) == 0) != want || listed == want {
			t.Errorf("excluded: %v, want %v", !listed, want)
		}
	}
	excluded(true)
	r.SetGroupVersions("definition", nil)
	r.SetGroupVersions("service", nil)
	excluded(true)
	fake.Step(exclusionTime / 2)
	excluded(true)
	fake.Step(exclusionTime)
	r.await(t, things, "other")
	excluded(false)
}

// TestPublisher publishes when the replica is ready, and removes the address at the end.
func TestPublisher(t *testing.T) {
	leases, err := NewLeases(storage.New(etcdtest.Client(t), "/registry"))
	if err != nil {
		t.Fatal(err)
	}
	fake := clocktesting.NewFakeClock(time.Now())
	ready := false
	p := &Publisher{
		Leases: leases, ID: "self", IP: "fd00::1", Port: 6443, Clock: fake, Logger: logr.Discard(),
		Ready: func(context.Context) bool {
			defer func() { ready = true }()
			return ready
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run(ctx, func() {}) // it has no error
	}()
	for {
		if address, err := leases.address(t.Context(), "self"); err == nil {
			if address != "[fd00::1]:6443" {
				t.Errorf("the address is %s", address)
			}
			break
		}
		fake.Step(readyInterval)
	}
	cancel()
	<-ended
	if _, err := leases.address(t.Context(), "self"); err == nil {
		t.Error("the address was not removed")
	}
}
