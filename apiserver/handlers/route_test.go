package handlers

import (
	"testing"

	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/resource"
)

func TestRouted(t *testing.T) {
	all := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	for name, c := range map[string]struct {
		verb, namespace  string
		parts            []string
		cluster, custom  bool
		verbs            []string
		exists, sensible bool
	}{
		"list": {
			verb: "list", namespace: "a", parts: []string{"pods"}, exists: true, sensible: true,
		},
		"list everywhere":        {verb: "list", parts: []string{"pods"}, exists: true, sensible: true},
		"create nowhere":         {verb: "create", parts: []string{"pods"}, exists: true},
		"create nowhere, custom": {verb: "create", parts: []string{"pods"}, custom: true},
		"create on an item":      {verb: "create", namespace: "a", parts: []string{"pods", "x"}, exists: true},
		"create on an item, custom": {
			verb: "create", namespace: "a", parts: []string{"pods", "x"}, custom: true, exists: true, sensible: true,
		},
		"item without a namespace": {verb: "get", parts: []string{"pods", "x"}},
		"item": {
			verb: "get", namespace: "a", parts: []string{"pods", "x"}, exists: true, sensible: true,
		},
		"item of a kind without items": {
			verb: "get", namespace: "a", parts: []string{"pods", "x"}, verbs: []string{"create"},
		},
		"cluster-scoped": {
			verb: "get", parts: []string{"nodes", "x"}, cluster: true, exists: true, sensible: true,
		},
		"cluster-scoped in a namespace": {verb: "get", namespace: "a", parts: []string{"nodes", "x"}, cluster: true},
		"namespace": {
			verb: "get", namespace: "a", parts: []string{"namespaces", "a"}, cluster: true, exists: true, sensible: true,
		},
		"update a collection": {verb: "update", namespace: "a", parts: []string{"pods"}, exists: true},
		"delete a collection": {
			verb: "deletecollection", namespace: "a", parts: []string{"pods"}, exists: true, sensible: true,
		},
		"delete a collection everywhere": {verb: "deletecollection", parts: []string{"pods"}, exists: true},
		"too deep":                       {verb: "get", namespace: "a", parts: []string{"pods", "x", "status", "y"}},
		"too deep, custom": {
			verb: "get", namespace: "a", parts: []string{"pods", "x", "status", "y"}, custom: true, exists: true, sensible: true,
		},
		"watch of an item":         {verb: "watch", parts: []string{"pods", "x"}},
		"watch of an item, custom": {verb: "watch", parts: []string{"pods", "x"}, custom: true, exists: true, sensible: true},
	} {
		info := &upstream.RequestInfo{Verb: c.verb, Namespace: c.namespace, Parts: c.parts, Resource: c.parts[0]}
		if len(c.parts) > 1 {
			info.Name = c.parts[1]
		}
		definition := &resource.Definition{Namespaced: !c.cluster, Plural: c.parts[0]}
		if c.custom {
			definition.Source = resource.Custom
		}
		endpoint := &resource.Endpoint{Verbs: all}
		if c.verbs != nil {
			endpoint.Verbs = c.verbs
		}
		if exists, sensible := routed(info, definition, endpoint); exists != c.exists || sensible != c.sensible {
			t.Errorf("%s: got %v, %v; want %v, %v", name, exists, sensible, c.exists, c.sensible)
		}
	}
}

// TestRoutedByVerb routes paths that contain a verb.
func TestRoutedByVerb(t *testing.T) {
	watchable, proxy := &resource.Endpoint{Verbs: []string{"list", "watch"}}, &resource.Endpoint{
		Connect: &resource.Connect{Methods: []string{"GET", "POST"}},
	}
	for name, c := range map[string]struct {
		verb, subresource string
		endpoint          *resource.Endpoint
		custom, exists    bool
	}{
		"watch":                        {verb: "watch", endpoint: watchable, exists: true},
		"watch of an unwatchable kind": {verb: "watch", endpoint: &resource.Endpoint{Verbs: []string{"get", "list"}}},
		"watch of a subresource":       {verb: "watch", subresource: "status", endpoint: watchable},
		"connect":                      {verb: "watch", subresource: "proxy", endpoint: proxy},
		"former proxy":                 {verb: "proxy", endpoint: watchable},
		"custom":                       {verb: "proxy", endpoint: watchable, custom: true, exists: true},
		"custom connect":               {verb: "watch", subresource: "proxy", endpoint: proxy, custom: true},
	} {
		definition := &resource.Definition{}
		if c.custom {
			definition.Source = resource.Custom
		}
		info := &upstream.RequestInfo{Verb: c.verb, Subresource: c.subresource}
		if exists := routedByVerb(info, definition, c.endpoint); exists != c.exists {
			t.Errorf("%s: got %v", name, exists)
		}
	}
}
