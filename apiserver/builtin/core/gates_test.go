package core_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

// TestFeatureGates: the behaviour of each gate is present with it and absent without it.
func TestFeatureGates(t *testing.T) {
	for gate, there := range map[featuregate.Feature]func(*testing.T, *builtintest.Server) bool{
		features.PodTopologyLabelsAdmission:            labelOfBinding,
		features.ClearingNominatedNodeNameAfterBinding: clearedNomination,
	} {
		for _, on := range []bool{true, false} {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
			if got := there(t, builtintest.NewServer(t, builtin.Options{}, nil)); got != on {
				t.Errorf("%s=%v: %v", gate, on, got)
			}
		}
	}
}

// bound returns a pod that was nominated and then bound by a binding with a label.
func bound(t *testing.T, s *builtintest.Server) *core.Pod {
	t.Helper()
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, builtintest.NewPod("web"), resource.WriteOptions{}))
	key := resource.Key{GroupResource: pods, Subresource: "status", Namespace: "default", Name: "web"}
	must[runtime.Object](t)(s.Update(t.Context(), key, func(o runtime.Object) error {
		o.(*core.Pod).Status.NominatedNodeName = "one"
		return nil
	}, resource.WriteOptions{}))
	must[runtime.Object](t)(s.Call(t.Context(), resource.Key{
		GroupResource: pods, Subresource: "binding", Namespace: "default", Name: "web",
	}, &core.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", Labels: map[string]string{"example.com/by": "binding"},
		},
		Target: core.ObjectReference{Kind: "Node", Name: "one"},
	}))
	return must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default", Name: "web"}, resource.ReadOptions{})).(*core.Pod)
}

func labelOfBinding(t *testing.T, s *builtintest.Server) bool {
	return bound(t, s).Labels["example.com/by"] == "binding"
}

func clearedNomination(t *testing.T, s *builtintest.Server) bool {
	return bound(t, s).Status.NominatedNodeName == ""
}
