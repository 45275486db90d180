package config

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOverrides(t *testing.T) {
	c := parse(t, "--etcd-servers=http://x:1",
		"--etcd-servers-overrides=/events#http://a:1;http://b:1,apps/*#http://c:1",
		"--etcd-servers-overrides=a.b/pods#http://d:1")
	got, err := c.Etcd.Overrides()
	want := []EtcdOverride{
		{schema.GroupResource{Resource: "events"}, []string{"http://a:1", "http://b:1"}},
		{schema.GroupResource{Group: "apps", Resource: "*"}, []string{"http://c:1"}},
		{schema.GroupResource{Group: "a.b", Resource: "pods"}, []string{"http://d:1"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestUncached(t *testing.T) {
	c := parse(t, "--etcd-servers=http://x:1", "--watch-cache-sizes=pods#0,deployments.apps#0,nodes#3,secrets#0,secrets#1")
	got, err := c.Etcd.Uncached()
	want := map[schema.GroupResource]bool{{Resource: "pods"}: true, {Group: "apps", Resource: "deployments"}: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
