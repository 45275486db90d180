package main

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/measure/samples"
)

const (
	payloadSize = 900 // bytes of data in a configmap, whose JSON is about 1 KB
	shards      = 100 // a selector of one shard matches 1 % of the pods
	nodes       = 50  // each node has 2 % of the pods
)

// configMap returns a configmap of about 1 KB. revision distinguishes its successive states.
func configMap(name string, revision int) *core.ConfigMap {
	return &core.ConfigMap{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": "benchmark"}},
		Data: map[string]string{
			"revision": fmt.Sprint(revision), "payload": strings.Repeat("0123456789", payloadSize/10),
		},
	}
}

// small returns a configmap of a few bytes. Crowds consist of manyObjects of them.
func small(name string, shard int) *core.ConfigMap {
	return &core.ConfigMap{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": "crowd", "shard": fmt.Sprint(shard)}},
		Data:       map[string]string{"key": "value"},
	}
}

// pod returns a pod that is bound to a node.
func pod(name string, shard, node int) *core.Pod {
	return samples.Pod(name, shard, fmt.Sprintf("node-%02d", node))
}
