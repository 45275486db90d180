package builtin_test

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

const (
	benchmarkPods  = 20_000
	benchmarkNodes = 200
)

// BenchmarkListPodsOfNode lists the pods of one of 200 nodes, among 20,000 pods.
func BenchmarkListPodsOfNode(b *testing.B) {
	s := builtintest.NewServer(b, builtin.Options{}, nil)
	match, _ := s.Catalog.Current().Find(schema.GroupResource{Resource: "pods"})
	storePods(b, s, func(i int) []byte {
		pod := builtintest.NewPod(fmt.Sprintf("pod-%d", i))
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i%benchmarkNodes)
		data, err := match.Version.Codec.Store(b.Context(), pod)
		if err != nil {
			b.Fatal(err)
		}
		return data
	})
	target := resource.Target{Match: match, Endpoint: match.Version.Endpoints[""]}
	for node := 0; b.Loop(); node++ {
		selector := fields.OneTermEqualSelector("spec.nodeName", fmt.Sprintf("node-%d", node%benchmarkNodes))
		options := registry.ListOptions{Selection: registry.Selection{Field: selector}, ResourceVersion: "0"}
		list, err := s.Registry.List(b.Context(), target, options)
		if err != nil {
			b.Fatal(err)
		}
		if got, want := len(list.Entries), benchmarkPods/benchmarkNodes; got != want {
			b.Fatalf("got %d pods, want %d", got, want)
		}
		list.Close()
	}
}

// storePods writes pods to etcd, many in each transaction.
func storePods(b *testing.B, s *builtintest.Server, encode func(i int) []byte) {
	b.Helper()
	const batch = 100
	for first := 0; first < benchmarkPods; first += batch {
		var puts []clientv3.Op
		for i := first; i < first+batch; i++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("/registry/pods/default/pod-%d", i), string(encode(i))))
		}
		if _, err := s.Etcd.Txn(b.Context()).Then(puts...).Commit(); err != nil {
			b.Fatal(err)
		}
	}
}
