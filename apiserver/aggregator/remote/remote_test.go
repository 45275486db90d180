package remote_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
)

// backend is a server whose documents are in memory.
type backend struct {
	lock      sync.Mutex
	documents map[string]document
	requests  map[string]int
	hangs     bool
	err       error
}

type document struct {
	contentType, body, tag string
	status                 int
}

func newBackend() *backend {
	return &backend{documents: map[string]document{}, requests: map[string]int{}}
}

func (b *backend) set(path string, d document) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.documents[path] = d
}

func (b *backend) fail(err error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.err = err
}

func (b *backend) count(path string) int {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.requests[path]
}

// Fetch implements remote.Backend.
func (b *backend) Fetch(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.requests[path]++
	if b.hangs {
		b.lock.Unlock()
		<-ctx.Done()
		b.lock.Lock()
		return nil, ctx.Err()
	}
	if b.err != nil {
		return nil, b.err
	}
	w := httptest.NewRecorder()
	d, ok := b.documents[path]
	switch {
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	case d.status != 0:
		w.WriteHeader(d.status)
	case d.tag != "" && header.Get("If-None-Match") == d.tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("Content-Type", d.contentType)
		w.Header().Set("Etag", d.tag)
		_, _ = io.WriteString(w, d.body)
	}
	return w.Result(), nil
}

func aggregatedType(version string) string {
	return "application/json;g=apidiscovery.k8s.io;v=" + version + ";as=APIGroupDiscoveryList"
}

// groupList returns the aggregated discovery of one resource in the versions v1 and v2 of a group.
func groupList(version, group, resource string) document {
	return document{contentType: aggregatedType(version), tag: `"` + resource + `"`, body: fmt.Sprintf(
		`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/%s","items":[{"metadata":{"name":%q},"versions":[`+
			`{"version":"v1","resources":[{"resource":%q,"scope":"Cluster","verbs":["get"],"subresources":[{"subresource":"status","verbs":["get"]}]}]},`+
			`{"version":"v2","resources":[{"resource":%q,"scope":"Cluster","verbs":["get"]}]}]}]}`, version, group,
		resource, resource)}
}

func apiService(b remote.Backend, server, group, version string) *remote.APIService {
	return &remote.APIService{
		GroupVersion: schema.GroupVersion{Group: group, Version: version},
		Priority:     priority.Priority{Group: 100, Version: 10},
		Server:       remote.Server{Namespace: "default", Name: server, Port: 443}, Backend: b,
	}
}

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// start runs a controller in a synctest bubble.
func start(t *testing.T) *remote.Controller {
	t.Helper()
	c, err := remote.New(clock.RealClock{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context){c.RunDiscovery, c.RunOpenAPIV2, c.RunOpenAPIV3} {
		running.Go(func() { run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

func find(t *testing.T, c *remote.Controller, group, version string) *remote.Documents {
	t.Helper()
	d := c.Current().Find(schema.GroupVersion{Group: group, Version: version})
	if d == nil {
		t.Fatalf("there are no documents of %s/%s", group, version)
	}
	return d
}

// summary returns the freshness and the names of the resources of a group version.
func summary(d *remote.Documents) string {
	var names []string
	for _, r := range d.Discovery.Resources {
		names = append(names, r.Resource)
		for _, s := range r.Subresources {
			names = append(names, r.Resource+"/"+s.Subresource)
		}
	}
	return string(d.Discovery.Freshness) + " " + strings.Join(names, ",")
}

func check(t *testing.T, c *remote.Controller, group, version, want string) {
	t.Helper()
	if got := summary(find(t, c, group, version)); got != want {
		t.Errorf("%s/%s: %s, want %s", group, version, got, want)
	}
}

const legacyV1 = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"legacy.example.com/v1","resources":[` +
	`{"name":"olds/status","namespaced":true,"kind":"Old","verbs":["get"]},{"name":"olds","singularName":"old","namespaced":true,"kind":"Old","verbs":["get"]},` +
	`{"name":"orphans/scale","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]}]}`

func TestDiscoveryForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		current, beta, legacy := newBackend(), newBackend(), newBackend()
		current.set("/apis", groupList("v2", "current.example.com", "things"))
		// A server with aggregated discovery in v2beta1 only is read by legacy documents.
		beta.set("/apis", groupList("v2beta1", "beta.example.com", "betas"))
		beta.set("/apis/beta.example.com/v1", document{
			contentType: "application/json", body: strings.ReplaceAll(legacyV1, "legacy", "beta"),
		})
		legacy.set("/apis", document{
			contentType: "application/json", body: `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		})
		legacy.set("/api/v9", document{
			contentType: "application/json", body: strings.ReplaceAll(legacyV1, "legacy.example.com/v1", "v9"),
		})
		legacy.set("/apis/legacy.example.com/v1", document{contentType: "application/json", body: legacyV1})
		c.Observe("v1.current.example.com", apiService(current, "current", "current.example.com", "v1"))
		c.Observe("v2.current.example.com", apiService(current, "current", "current.example.com", "v2"))
		c.Observe("v3.current.example.com", apiService(current, "current", "current.example.com", "v3"))
		c.Observe("v1.beta.example.com", apiService(beta, "beta", "beta.example.com", "v1"))
		c.Observe("v1.legacy.example.com", apiService(legacy, "legacy", "legacy.example.com", "v1"))
		c.Observe("v2.legacy.example.com", apiService(legacy, "legacy", "legacy.example.com", "v2"))
		c.Observe("v9.", apiService(legacy, "legacy", "", "v9"))
		c.Known()
		<-c.Completed()
		synctest.Wait()
		check(t, c, "current.example.com", "v1", "Current things,things/status")
		check(t, c, "current.example.com", "v2", "Current things")
		check(t, c, "current.example.com", "v3", "Current ") // the server does not have this version
		check(t, c, "beta.example.com", "v1", "Current olds,olds/status,orphans,orphans/scale")
		check(t, c, "legacy.example.com", "v1", "Current olds,olds/status,orphans,orphans/scale")
		check(t, c, "legacy.example.com", "v2", "Stale ")
		check(t, c, "", "v9", "Current olds,olds/status,orphans,orphans/scale")
		if n := current.count("/apis"); n != 1 {
			t.Errorf("%d requests for the APIServices of one server, want 1", n)
		}
		for _, r := range find(t, c, "current.example.com", "v1").Discovery.Resources {
			if r.ResponseKind == nil || r.Subresources[0].ResponseKind == nil {
				t.Errorf("%s has no response kind, which some clients panic on", r.Resource)
			}
		}
	})
}

func TestFailureKeepsTheLastDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		c.Known()
		b := newBackend()
		b.set("/apis", groupList("v2", "a.example.com", "things"))
		b.set("/openapi/v3", document{
			body: `{"paths":{"apis/a.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/a.example.com/v1?hash=1"}}}`,
		})
		c.Observe("v1.a.example.com", apiService(b, "a", "a.example.com", "v1"))
		check(t, c, "a.example.com", "v1", "Stale ") // until the first download
		pass(2 * time.Second)
		check(t, c, "a.example.com", "v1", "Current things,things/status")
		before := c.Current()
		pass(5 * time.Minute)
		if c.Current() != before {
			t.Error("the documents are new although nothing changed")
		}
		if n := b.count("/apis"); n != 6 {
			t.Errorf("%d requests in five minutes, want 6", n)
		}
		for name, d := range map[string]document{
			"garbage": {contentType: aggregatedType("v2"), body: "garbage"}, "other kind": {
				contentType: aggregatedType("v2"), body: `{"kind":"Pod","apiVersion":"v1"}`,
			},
			"unavailable": {status: http.StatusServiceUnavailable}, "not found": {status: http.StatusNotFound},
			"huge": {contentType: aggregatedType("v2"), body: strings.Repeat(" ", 16<<20+1)},
		} {
			b.set("/apis", d)
			pass(2 * time.Minute)
			if got := summary(find(t, c, "a.example.com", "v1")); got != "Stale things,things/status" {
				t.Errorf("%s: %s", name, got)
			}
		}
		b.set("/apis", groupList("v2", "a.example.com", "others"))
		b.fail(fmt.Errorf("connection refused"))
		pass(2 * time.Minute)
		check(t, c, "a.example.com", "v1", "Stale things,things/status")
		if len(find(t, c, "a.example.com", "v1").V3) != 1 {
			t.Error("the index of OpenAPI documents was not kept")
		}
		b.fail(nil)
		pass(2 * time.Minute)
		check(t, c, "a.example.com", "v1", "Current others,others/status")
		c.Observe("v1.a.example.com", nil)
		if set := c.Current(); set != nil {
			t.Errorf("after the last APIService was deleted: %v", set)
		}
		requests := b.count("/apis")
		pass(10 * time.Minute)
		if n := b.count("/apis"); n != requests {
			t.Errorf("%d requests after the last APIService was deleted", n-requests)
		}
	})
}

// TestAPIServiceIsRegisteredAgain checks that the documents of a group version are downloaded although the server's
// documents have not changed since an APIService of the group version named the server before.
func TestAPIServiceIsRegisteredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, b := start(t), newBackend()
		b.set("/apis", groupList("v2", "things.io", "things"))
		c.Known()
		v1, v2 := apiService(b, "things", "things.io", "v1"), apiService(b, "things", "things.io", "v2")
		c.Observe("v1.things.io", v1)
		c.Observe("v2.things.io", v2)
		pass(time.Second)
		before := summary(find(t, c, "things.io", "v1"))
		c.Observe("v1.things.io", &remote.APIService{GroupVersion: v1.GroupVersion, Priority: priority.Custom, Managed: true})
		pass(time.Second)
		c.Observe("v1.things.io", v1)
		pass(time.Second)
		check(t, c, "things.io", "v1", before)
	})
}

// TestSlowServersDelayNoOther has a thousand servers that never respond. They use a bounded number of goroutines, and
// neither delay a server that responds, nor the start for long.
func TestSlowServersDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		slow := newBackend()
		slow.hangs = true
		before := runtime.NumGoroutine()
		for i := range 1000 {
			group := fmt.Sprintf("slow%d.example.com", i)
			c.Observe("v1."+group, apiService(slow, fmt.Sprint("slow", i), group, "v1"))
		}
		c.Known()
		pass(time.Second)
		if n := runtime.NumGoroutine() - before; n > 1000 {
			t.Errorf("%d goroutines", n)
		}
		began := time.Now()
		<-c.Completed()
		if waited := time.Since(began); waited > 30*time.Second {
			t.Errorf("the start waited %v", waited)
		}
		good := newBackend()
		good.set("/apis", groupList("v2", "good.example.com", "things"))
		c.Observe("v1.good.example.com", apiService(good, "good", "good.example.com", "v1"))
		pass(time.Second)
		check(t, c, "good.example.com", "v1", "Current things,things/status")
		check(t, c, "slow7.example.com", "v1", "Stale ")
		good.set("/apis", groupList("v2", "good.example.com", "others"))
		pass(time.Minute + 5*time.Second)
		check(t, c, "good.example.com", "v1", "Current others,others/status")
	})
}

// TestLargeDiscovery downloads more large documents than may be in memory at the same time.
func TestLargeDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		for i := range 40 {
			b, group := newBackend(), fmt.Sprintf("large%d.example.com", i)
			d := groupList("v2", group, "things")
			d.body += strings.Repeat(" ", 1<<20)
			b.set("/apis", d)
			c.Observe("v1."+group, apiService(b, group, group, "v1"))
		}
		c.Known()
		<-c.Completed()
		for i := range 40 {
			check(t, c, fmt.Sprintf("large%d.example.com", i), "v1", "Current things,things/status")
		}
	})
}

const v2Document = `{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{"/apis/":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Other"}}}}},
"/apis/a.example.com/v1/things":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Thing"}}}}}},
"definitions":{"Thing":{"type":"object"},"Other":{"type":"object"}}}`

func TestOpenAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		c.Known()
		b := newBackend()
		b.set("/openapi/v2", document{body: v2Document, tag: `"1"`})
		b.set("/openapi/v3", document{
			body: `{"paths":{"version":{"serverRelativeURL":"/x"},"apis/a.example.com":{"serverRelativeURL":"/g"},"apis/a.example.com/v1":{"serverRelativeURL":"/v"},"apis/b.example.com/v1":{"serverRelativeURL":"/o"}}}`,
		})
		c.Observe("v1.a.example.com", apiService(b, "a", "a.example.com", "v1"))
		pass(2 * time.Second)
		d := find(t, c, "a.example.com", "v1")
		if len(d.V3) != 2 || d.V3["apis/a.example.com/v1"] != "/v" || d.Converted {
			t.Errorf("version 3: %v", d.V3)
		}
		swagger, err := d.V2.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if len(swagger.Paths.Paths) != 1 || len(swagger.Definitions) != 1 {
			t.Errorf("version 2 is not reduced to the group version: %v", swagger)
		}
		b.set("/openapi/v2", document{body: "garbage"})
		b.set("/openapi/v3", document{body: "garbage"})
		pass(5 * time.Minute)
		if after := find(t, c, "a.example.com", "v1"); after.V2 != d.V2 || len(after.V3) != 2 {
			t.Error("garbage replaced valid documents")
		}
		b.set("/openapi/v2", document{body: v2Document})
		b.set("/openapi/v3", document{status: http.StatusNotFound})
		c.Observe("v1.a.example.com", apiService(b, "a", "a.example.com", "v1")) // ends the backoff
		pass(2 * time.Second)
		if after := find(t, c, "a.example.com", "v1"); !after.Converted || len(after.V3) != 0 || after.V2.Tag != d.V2.Tag {
			t.Errorf("without version 3: %+v", after)
		}
	})
}

func TestLocalAPIServices(t *testing.T) {
	c, err := remote.New(clock.RealClock{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	custom := schema.GroupVersion{Group: "example.com", Version: "v1"}
	standard, _ := priority.BuiltIn(apps)
	local := func(gv schema.GroupVersion, p priority.Priority, managed bool) *remote.APIService {
		return &remote.APIService{GroupVersion: gv, Priority: p, Managed: managed}
	}
	c.Observe("v1.apps", local(apps, standard, true))
	c.Observe("v1.example.com", local(custom, priority.Custom, true))
	c.Known()
	<-c.Completed()
	if set := c.Current(); set != nil {
		t.Errorf("with the default APIServices only: %+v", set)
	}
	c.Observe("v1.apps", local(apps, priority.Priority{Group: 5, Version: 6}, true))
	c.Observe("v1.example.com", local(custom, priority.Custom, false))
	if set := c.Current(); set.Local[apps].Group != 5 || set.Local[custom] != priority.Custom {
		t.Errorf("after changes: %+v", set)
	}
	c.Observe("v1.apps", nil)
	c.Observe("v1.example.com", nil)
	if set := c.Current(); !set.Removed[apps] || set.Removed[custom] || len(set.Local) != 0 {
		t.Errorf("after deletions: %+v", set)
	}
	c.Observe("v1.apps", local(apps, standard, true))
	if set := c.Current(); set != nil {
		t.Errorf("after the APIService is back: %+v", set)
	}
}
