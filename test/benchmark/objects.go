package main

import (
	"encoding/json"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	payloadSize = 900 // bytes of data in a configmap, whose JSON is about 1 KB
	shards      = 100 // a selector of one shard matches 1 % of the pods
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

// pod returns a pod as the controller of a Deployment creates it. With what servers add, it is stored as about 2.7 KB
// of protobuf.
func pod(name string, shard int) *core.Pod {
	controller, grace := true, int64(30)
	return &core.Pod{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				"app.kubernetes.io/name": "checkout", "app.kubernetes.io/instance": "checkout-production",
				"pod-template-hash": "6d4cf56db6", "shard": fmt.Sprint(shard),
			},
			Annotations: map[string]string{
				"prometheus.io/port": "9090", "checksum/config": "5f16b0e1d9b8d7f5c1e4a3b2968778695a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d",
			},
			OwnerReferences: []meta.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "checkout-6d4cf56db6",
				UID: "1c2a6e80-3d1b-4e55-9a4f-6f1f0f7c2b11", Controller: &controller, BlockOwnerDeletion: &controller,
			}},
		},
		Spec: core.PodSpec{
			ServiceAccountName: "checkout", TerminationGracePeriodSeconds: &grace,
			Containers: []core.Container{service("server", 8080)}, Volumes: []core.Volume{configVolume("config")},
		},
	}
}

func service(name string, port int32) core.Container {
	probe := core.ProbeHandler{HTTPGet: &core.HTTPGetAction{Path: "/health/ready", Port: intstr.FromInt32(port)}}
	return core.Container{
		Name: name, Image: "registry.example.com/shop/" + name + ":1.27.4@sha256:" + strings.Repeat("3f", 32),
		Ports: []core.ContainerPort{{Name: "http", ContainerPort: port, Protocol: core.ProtocolTCP}},
		Env: []core.EnvVar{
			{Name: "DATABASE_HOST", Value: "postgres.production.svc.cluster.local"},
			{Name: "POD_NAME", ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		},
		Resources: core.ResourceRequirements{
			Requests: core.ResourceList{
				core.ResourceCPU: resource.MustParse("250m"), core.ResourceMemory: resource.MustParse("256Mi"),
			},
			Limits: core.ResourceList{core.ResourceMemory: resource.MustParse("512Mi")},
		},
		VolumeMounts:   []core.VolumeMount{{Name: "config", MountPath: "/etc/checkout", ReadOnly: true}},
		ReadinessProbe: &core.Probe{ProbeHandler: probe, PeriodSeconds: 5},
	}
}

func configVolume(name string) core.Volume {
	source := &core.ConfigMapVolumeSource{LocalObjectReference: core.LocalObjectReference{Name: "checkout-" + name}}
	return core.Volume{Name: name, VolumeSource: core.VolumeSource{ConfigMap: source}}
}

// toJSON and toProtobuf encode objects of this program. They panic on errors, which would be mistakes in the program.
func toJSON(object any) []byte {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return data
}

func toProtobuf(object runtime.Object) []byte {
	data, err := runtime.Encode(protobuf.NewSerializer(nil, nil), object)
	if err != nil {
		panic(err)
	}
	return data
}
