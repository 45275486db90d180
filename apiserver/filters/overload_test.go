package filters

import (
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/request"
)

func TestIsShed(t *testing.T) {
	const none, high, critical = memory.Normal, memory.High, memory.Critical
	for name, test := range map[string]struct {
		verb, group, resource, path, who string
		length                           int64
		from                             memory.Level // the lowest level at which the request is rejected; none: it never is
	}{
		"get":                      {verb: "get", resource: "pods", from: critical},
		"list":                     {verb: "list", resource: "pods", from: high},
		"watch":                    {verb: "watch", resource: "pods", from: high},
		"small create":             {verb: "create", resource: "pods", length: 1000, from: critical},
		"large create":             {verb: "create", resource: "pods", length: 1 << 20, from: high},
		"body of unknown size":     {verb: "create", resource: "pods", length: -1, from: high},
		"delete":                   {verb: "delete", resource: "pods", from: none},
		"deletecollection":         {verb: "deletecollection", resource: "pods", from: high},
		"list by a node":           {verb: "list", resource: "pods", who: user.NodesGroup, from: critical},
		"list by an administrator": {verb: "list", resource: "pods", who: user.SystemPrivilegedGroup, from: none},
		"lease": {
			verb: "update", group: "coordination.k8s.io", resource: "leases", length: 500, from: none,
		},
		"get of a lease": {verb: "get", group: "coordination.k8s.io", resource: "leases", from: none},
		"list of leases": {verb: "list", group: "coordination.k8s.io", resource: "leases", from: high},
		"large lease": {
			verb: "update", group: "coordination.k8s.io", resource: "leases", length: 1 << 20, from: critical,
		},
		"leases of another group": {verb: "update", group: "example.com", resource: "leases", length: 500, from: critical},
		"health check":            {verb: "get", path: "/livez", from: none},
		"metrics":                 {verb: "get", path: "/metrics", from: none},
		"another path":            {verb: "get", path: "/openapi/v2", from: critical},
	} {
		record := &request.Record{User: &user.DefaultInfo{Name: "alice", Groups: []string{test.who}}}
		record.Info.Verb, record.Info.APIGroup, record.Info.Resource = test.verb, test.group, test.resource
		record.Info.Path = test.path
		for _, level := range []memory.Level{none, high, critical} {
			want := test.from != none && level >= test.from
			if got := isShed(level, record, test.length); got != want {
				t.Errorf("%s at level %v: %t", name, level, got)
			}
		}
	}
}

func TestOverload(t *testing.T) {
	level := memory.High
	f := start(t, false, func(o *Options) { o.MemoryLevel = func() memory.Level { return level } },
		func(http.ResponseWriter, *http.Request) {})
	response, body := f.get(t, "GET", podsPath, "alice")
	expect(t, response, body, 429, "Too many requests, please try again later.\n")
	if after := response.Header.Get("Retry-After"); after != overloadRetry {
		t.Errorf("Retry-After is %q", after)
	}
	if code := f.code(t, podsPath+"/a", "alice"); code != http.StatusOK {
		t.Errorf("a request that is not costly: %d", code)
	}
	if n := f.value(t, "quorate_shed_requests_total", `level="high"`); n != 1 {
		t.Errorf("%v requests were counted", n)
	}
	level = memory.Normal
	if code := f.code(t, podsPath, "alice"); code != http.StatusOK {
		t.Errorf("when memory is free again: %d", code)
	}
}
