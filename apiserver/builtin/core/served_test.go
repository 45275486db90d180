package core_test

import (
	"context"
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
		{},
	})
}
