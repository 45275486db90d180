package registry

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// TestCheckQuotaWithoutSpace stores objects whose sizes clients choose while the soft quota is exceeded.
func TestCheckQuotaWithoutSpace(t *testing.T) {
	full := func() storage.Space { return storage.Space{Size: 1 << 20, InUse: 1 << 20, Quota: 1 << 20} }
	r := &Registry{main: Storage{Quota: &storage.SoftQuota{Measure: full, Percent: 90}}}
	now := metav1.Now()
	live := &corev1.ConfigMap{}
	deleted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}
	configMaps := schema.GroupResource{Resource: "configmaps"}
	for name, c := range map[string]struct {
		resource      schema.GroupResource
		old           runtime.Object
		before, after int
		options       WriteOptions
		admitted      bool
	}{
		"new":     {resource: configMaps, after: 1},
		"grows":   {resource: configMaps, old: live, before: 1, after: 2},
		"shrinks": {resource: configMaps, old: live, before: 2, after: 1, admitted: true},
		"the server's own": {
			resource: configMaps, after: 1 << 20, options: WriteOptions{Internal: true}, admitted: true,
		},
		"deleted, little growth":   {resource: configMaps, old: deleted, before: 1 << 10, after: 2 << 10, admitted: true},
		"deleted, great growth":    {resource: configMaps, old: deleted, before: 1 << 10, after: 1 << 20},
		"deleted, shrinks":         {resource: configMaps, old: deleted, before: 1 << 20, after: 1 << 10, admitted: true},
		"new lease":                {resource: leases, after: 1 << 10, admitted: true},
		"new lease, great":         {resource: leases, after: 1 << 20},
		"lease, great, not larger": {resource: leases, old: live, before: 1 << 20, after: 1 << 20, admitted: true},
		"lease, great growth":      {resource: leases, old: live, before: 1 << 10, after: 1 << 20},
	} {
		definition := &resource.Definition{Group: c.resource.Group, Plural: c.resource.Resource}
		target := resource.Target{Match: resource.Match{Definition: definition}}
		err := r.checkQuota(target, c.old, c.before, c.after, c.options)
		if (err == nil) != c.admitted || err != nil && !errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
