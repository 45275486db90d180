// Package samples has the objects that measured servers store, and encodes them.
package samples

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

// Pod returns a pod as the controller of a Deployment creates it, but bound to a node unless node is "". With what
// servers add, it is stored as about 2.7 KB of protobuf.
func Pod(name string, shard int, node string) *core.Pod {
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
			NodeName: node, ServiceAccountName: "checkout", TerminationGracePeriodSeconds: &grace,
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

// JSON encodes an object of a program. It panics on errors, which would be mistakes in the program.
func JSON(object any) []byte {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return data
}

// Protobuf encodes an object in the same way as JSON.
func Protobuf(object runtime.Object) []byte {
	data, err := runtime.Encode(protobuf.NewSerializer(nil, nil), object)
	if err != nil {
		panic(err)
	}
	return data
}
