package bootstrap_test

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
)

// TestFeatureGates: the behaviour of each gate is present with it and absent without it.
func TestFeatureGates(t *testing.T) {
	for gate, there := range map[featuregate.Feature]func(*testing.T, *builtintest.Server) bool{
		apiserverfeatures.UnknownVersionInteroperabilityProxy: peerAddress,
		apiserverfeatures.RemoteRequestHeaderUID:              uidHeaders,
	} {
		for _, on := range []bool{true, false} {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
			if got := there(t, withSystem(t)); got != on {
				t.Errorf("%s=%v: %v", gate, on, got)
			}
		}
	}
}

func peerAddress(t *testing.T, s *builtintest.Server) bool {
	b := bootstrap.New(s, clock.RealClock{}, logr.Discard())
	background(t, func(ctx context.Context) { _ = b.Identity("vm", "10.0.0.1:6443").Run(ctx, func() {}) })
	var lease *coordination.Lease
	eventually(t, "a lease", func() bool {
		object, err := s.Get(t.Context(),
			resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: "apiserver-wlv32tlttr4jl3gtroqexyxapa"},
			resource.ReadOptions{})
		if err == nil {
			lease = object.(*coordination.Lease)
		}
		return err == nil
	})
	return lease.Annotations["kubernetes.io/peer-advertise-address"] != ""
}

func uidHeaders(t *testing.T, s *builtintest.Server) bool {
	own := bootstrap.Authentication{
		RequestHeaderCA: func() []byte { return newCertificate(t, "proxy", metav1.Now().AddDate(1, 0, 0)) },
		UIDHeaders:      []string{"X-Remote-Uid"},
	}
	loop := bootstrap.New(s, clock.RealClock{}, logr.Discard()).AuthenticationLoop(own, nil)
	if err := loop.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	published := must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{
			GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.AuthenticationConfigMap,
		},
		resource.ReadOptions{})).(*core.ConfigMap)
	return published.Data["requestheader-uid-headers"] != ""
}
