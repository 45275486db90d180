package registry

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

func TestExpiredWatchError(t *testing.T) {
	cached := resource.Target{Match: resource.Match{Definition: &resource.Definition{}}}
	ttl := cached
	ttl.Definition = &resource.Definition{TimeToLive: func(runtime.Object) time.Duration { return time.Hour }}
	for name, test := range map[string]struct {
		target resource.Target
		want   string
	}{
		"cached by kube-apiserver": {cached, "too old resource version: 7 (9)"},
		"with a TTL":               {ttl, "The resourceVersion for the provided watch is too old."},
	} {
		err := (&Watch{filter: selection.Filter{Target: test.target}}).error(watchcache.ErrExpired, 7, 9)
		if !apierrors.IsResourceExpired(err) || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}
