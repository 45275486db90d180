package core_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/core"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/resource"
)

// definitionsOf returns the definitions of the core group.
func definitionsOf(options core.Options) []*resource.Definition {
	options.Clock, options.EventTTL = clock.RealClock{}, time.Hour
	return core.Definitions(builtintest.NewBuilder(), options)
}

func unusedToken(context.Context, resource.Call) (runtime.Object, error) { return nil, nil }

func TestServed(t *testing.T) {
	t.Parallel()
	kubelets := must[*kubelet.Kubelets](t)(kubelet.New(nil, kubelet.Options{Registerer: prometheus.NewRegistry()}))
	builtintest.CheckServed(t, definitionsOf(core.Options{Token: unusedToken, Kubelets: kubelets}), []builtintest.Served{
		{
			Resource: "bindings", Kind: "Binding", Versions: "v1", Namespaced: true, Verbs: "create",
		},
		{
			Resource: "componentstatuses", Kind: "ComponentStatus", Versions: "v1", ShortNames: "cs",
			Verbs: "get list", Columns: "Status, Message, Error",
		},
		{
			Resource: "pods", Kind: "Pod", Versions: "v1", ShortNames: "po", Categories: "all",
			Namespaced: true, Stored: "pods v1", ReturnsDeleted: true,
			Fields: "spec.hostNetwork spec.nodeName spec.restartPolicy spec.schedulerName " +
				"spec.serviceAccountName status.nominatedNodeName status.phase status.podIP",
			Columns: "Ready, Status, Restarts, Age, (IP), (Node), (Nominated Node), (Readiness Gates)",
			Subresources: []string{
				"attach v1.PodAttachOptions create get",
				"binding v1.Binding create (no table)", "ephemeralcontainers (no table)",
				"eviction policy/v1.Eviction create (no table)", "exec v1.PodExecOptions create get",
				"log get", "portforward v1.PodPortForwardOptions create get",
				"proxy v1.PodProxyOptions create delete get patch update", "resize (no table)", "status",
			},
		},
		{
			Resource: "namespaces", Kind: "Namespace", Versions: "v1", ShortNames: "ns",
			Verbs: "create delete get list patch update watch", Stored: "namespaces v1",
			ReturnsDeleted: true, Fields: "status.phase", Columns: "Status, Age",
			Subresources: []string{"finalize update", "status"},
		},
		{
			Resource: "serviceaccounts", Kind: "ServiceAccount", Versions: "v1", ShortNames: "sa",
			Namespaced: true, Stored: "serviceaccounts v1", ReturnsDeleted: true, Columns: "Age",
			Subresources: []string{"token authentication.k8s.io/v1.TokenRequest create (no table)"},
		},
		{
			Resource: "configmaps", Kind: "ConfigMap", Versions: "v1", ShortNames: "cm", Namespaced: true,
			Stored: "configmaps v1", Columns: "Data, Age",
		},
		{
			Resource: "endpoints", Kind: "Endpoints", Versions: "v1", ShortNames: "ep", Namespaced: true,
			Stored: "services/endpoints v1", Columns: "Endpoints, Age",
		},
		{
			Resource: "limitranges", Kind: "LimitRange", Versions: "v1", ShortNames: "limits",
			Namespaced: true, Stored: "limitranges v1", Columns: "Created At",
		},
		{
			Resource: "podtemplates", Kind: "PodTemplate", Versions: "v1", Namespaced: true,
			Stored: "podtemplates v1", ReturnsDeleted: true, Columns: "Containers, Images, Pod Labels",
		},
		{
			Resource: "secrets", Kind: "Secret", Versions: "v1", Namespaced: true, Stored: "secrets v1",
			Fields: "type", Columns: "Type, Data, Age",
		},
		{
			Resource: "nodes", Kind: "Node", Versions: "v1", ShortNames: "no", Stored: "minions v1",
			Fields: "spec.unschedulable",
			Columns: "Status, Roles, Age, Version, (Internal-IP), (External-IP), (OS-Image), " +
				"(Kernel-Version), (Container-Runtime)",
			Subresources: []string{"proxy v1.NodeProxyOptions create delete get patch update", "status"},
		},
		{
			Resource: "persistentvolumes", Kind: "PersistentVolume", Versions: "v1", ShortNames: "pv",
			Stored: "persistentvolumes v1", ReturnsDeleted: true,
			Columns: "Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, " +
				"VolumeAttributesClass, Reason, Age, (VolumeMode)",
			Subresources: []string{"status"},
		},
		{
			Resource: "persistentvolumeclaims", Kind: "PersistentVolumeClaim", Versions: "v1",
			ShortNames: "pvc", Namespaced: true, Stored: "persistentvolumeclaims v1", ReturnsDeleted: true,
			Columns:      "Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, (VolumeMode)",
			Subresources: []string{"status"},
		},
		{
			Resource: "replicationcontrollers", Kind: "ReplicationController", Versions: "v1",
			ShortNames: "rc", Categories: "all", Namespaced: true, Stored: "controllers v1",
			Fields:       "status.replicas",
			Columns:      "Desired, Current, Ready, Age, (Containers), (Images), (Selector)",
			Subresources: []string{"scale autoscaling/v1.Scale", "status"},
		},
		{
			Resource: "resourcequotas", Kind: "ResourceQuota", Versions: "v1", ShortNames: "quota",
			Namespaced: true, Stored: "resourcequotas v1", ReturnsDeleted: true,
			Columns: "Request, Limit, Age", Subresources: []string{"status"},
		},
		{
			Resource: "services", Kind: "Service", Versions: "v1", ShortNames: "svc", Categories: "all",
			Namespaced: true, Stored: "services/specs v1", ReturnsDeleted: true,
			Fields:  "spec.clusterIP spec.type",
			Columns: "Type, Cluster-IP, External-IP, Port(s), Age, (Selector)",
			Subresources: []string{
				"proxy v1.ServiceProxyOptions create delete get patch update",
				"status",
			},
		},
		{
			Resource: "events", Kind: "Event", Versions: "v1", ShortNames: "ev", Namespaced: true,
			Stored: "events v1",
			Fields: "involvedObject.apiVersion involvedObject.fieldPath involvedObject.kind " +
				"involvedObject.name involvedObject.namespace involvedObject.resourceVersion " +
				"involvedObject.uid reason reportingComponent source type",
			Columns: "Type, Reason, Object, (Subobject), (Source), Message, (First Seen), (Count), (Name)",
		},
	})
}

// TestSubresourcesOfAbsentDependencies: without tokens and kubelets, the endpoints that need them are not served.
func TestSubresourcesOfAbsentDependencies(t *testing.T) {
	t.Parallel()
	for plural, want := range map[string][]string{
		"pods":            {"", "binding", "ephemeralcontainers", "eviction", "resize", "status"},
		"services":        {"", "status"},
		"nodes":           {"", "status"},
		"serviceaccounts": {""},
	} {
		endpoints := builtintest.FindTarget(t, definitionsOf(core.Options{}), plural, "").Version.Endpoints
		if got := slices.Sorted(maps.Keys(endpoints)); !slices.Equal(got, want) {
			t.Errorf("%s: got the endpoints %q, want %q", plural, got, want)
		}
	}
}

// TestEventsExpire: events expire after the configured time, other objects do not.
func TestEventsExpire(t *testing.T) {
	t.Parallel()
	for _, d := range definitionsOf(core.Options{}) {
		if d.Plural == "events" {
			if got := d.TimeToLive(d.Versions[0].Codec.New()); got != time.Hour {
				t.Errorf("events expire after %v, want %v", got, time.Hour)
			}
		} else if d.TimeToLive != nil {
			t.Errorf("%s expire", d.Plural)
		}
	}
}

// TestPodsAreIndexedByNode: watches of kubelets find their pods by the node in the stored bytes.
func TestPodsAreIndexedByNode(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitionsOf(core.Options{}), "pods", "")
	bound := builtintest.NewPod("web")
	bound.Spec.NodeName = "one"
	stored := must[[]byte](t)(target.Version.Codec.Store(t.Context(), bound))
	if node := must[string](t)(target.Index.Value(stored)); target.Index.Field != "spec.nodeName" || node != "one" {
		t.Errorf("got %s = %q, want spec.nodeName = \"one\"", target.Index.Field, node)
	}
}

// TestDecorationOfClaims: a PersistentVolumeClaim that is stored with dataSource alone, or with dataSourceRef alone, is
// read with both fields.
func TestDecorationOfClaims(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitionsOf(core.Options{}), "persistentvolumeclaims", "")
	const source = `{"apiGroup":"snapshot.storage.k8s.io","kind":"VolumeSnapshot","name":"yesterday"}`
	for _, stored := range []string{"dataSource", "dataSourceRef"} {
		claim := builtintest.Decode(t, target,
			`{"apiVersion":"v1","kind":"PersistentVolumeClaim","spec":{"`+stored+`":`+source+`}}`)
		target.Decorate(claim)
		builtintest.CheckFields(t, must[runtime.Object](t)(target.Version.Codec.External(claim)),
			map[string]string{"spec.dataSource": source, "spec.dataSourceRef": source})
	}
	if !target.Version.Endpoints["status"].Undecorated || target.Endpoint.Undecorated {
		t.Error("only the status endpoint must return claims as they are stored")
	}
}
