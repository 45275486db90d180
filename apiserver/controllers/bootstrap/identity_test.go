package bootstrap_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/coordination"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
)

// overtaken is a server on which another replica always creates the lease first.
type overtaken struct{ *builtintest.Server }

func (o overtaken) Create(
	ctx context.Context, key resource.Key, object runtime.Object, options resource.WriteOptions,
) (runtime.Object, error) {
	if lease, ok := object.(*coordination.Lease); ok {
		other := lease.DeepCopy()
		other.Spec.HolderIdentity, other.Spec.RenewTime = ptr.To("other"), nil
		if _, err := o.Server.Create(ctx, key, other, options); err != nil {
			return nil, err
		}
	}
	return o.Server.Create(ctx, key, object, options)
}

// TestIdentityIsSharedOnOneHost: replicas on one host share a lease without errors.
func TestIdentityIsSharedOnOneHost(t *testing.T) {
	s := withSystem(t)
	var errors atomic.Int32
	logger := funcr.New(func(_, args string) {
		if strings.Contains(args, `"error"`) {
			t.Log(args)
			errors.Add(1)
		}
	}, funcr.Options{})
	fake := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	stop := background(t, func(ctx context.Context) {
		bootstrap.New(overtaken{s}, fake, logger).Identity("vm", "10.0.0.1:6443").Run(ctx, func() {})
	})
	eventually(t, "a renewal of the shared lease", func() bool {
		key := resource.Key{
			GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: "apiserver-wlv32tlttr4jl3gtroqexyxapa",
		}
		object, err := s.Get(t.Context(), key, resource.ReadOptions{})
		if err != nil {
			return false
		}
		lease := object.(*coordination.Lease)
		return *lease.Spec.HolderIdentity == "other" && lease.Spec.RenewTime != nil &&
			lease.Spec.RenewTime.Time.Equal(fake.Now())
	})
	stop()
	if errors.Load() > 0 {
		t.Errorf("%d errors were logged", errors.Load())
	}
}
