package apiserver

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

func TestProcessSettings(t *testing.T) {
	c := config.Default()
	if err := configureProcess(c, logr.Discard(), &verbosity{}); err != nil {
		t.Fatal(err)
	}
	if limit := atomic.LoadInt64(&jsonpatch.AccumulatedCopySizeLimit); limit != 3<<20 {
		t.Errorf("a JSON patch may copy %d bytes", limit)
	}
	c.API.FeatureGates = map[string]string{"ConstrainedImpersonation": "maybe"}
	if err := configureProcess(c, logr.Discard(), &verbosity{}); err == nil {
		t.Error("an invalid feature gate was accepted")
	}
}

// brokenCodec cannot convert objects.
type brokenCodec struct{ resource.Codec }

func (brokenCodec) External(runtime.Object) (runtime.Object, error) { return nil, errors.New("broken") }

// A role that cannot be converted must not grant what its previous version did.
func TestObjectThatCannotBeConvertedCountsAsDeleted(t *testing.T) {
	calls := 0
	handle := external(brokenCodec{}, func(key string, object runtime.Object) {
		calls++
		if key != "a/b" || object != nil {
			t.Errorf("got %s %v", key, object)
		}
	})
	handle("a/b", &rbacv1.Role{})
	handle("a/b", nil)
	if calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
}
