package strategy

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
)

// collected is a delete strategy with a default garbage collection policy.
type collected struct {
	rest.RESTDeleteStrategy
	policy rest.GarbageCollectionPolicy
}

func (c collected) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return c.policy
}

func TestCollectionFinalizers(t *testing.T) {
	const orphan, foreground = metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents
	const other = "example.com/hold"
	policy := func(p metav1.DeletionPropagation) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{PropagationPolicy: &p}
	}
	for name, c := range map[string]struct {
		standard   rest.GarbageCollectionPolicy
		finalizers []string
		options    *metav1.DeleteOptions
		want       []string
	}{
		"default":                       {rest.DeleteDependents, nil, &metav1.DeleteOptions{}, nil},
		"kind orphans":                  {rest.OrphanDependents, nil, &metav1.DeleteOptions{}, []string{orphan}},
		"kind orphans, client does not": {rest.OrphanDependents, nil, policy(metav1.DeletePropagationBackground), nil},
		"client orphans": {
			rest.DeleteDependents, []string{other}, policy(metav1.DeletePropagationOrphan), []string{other, orphan},
		},
		"client waits": {
			rest.DeleteDependents, nil, policy(metav1.DeletePropagationForeground), []string{foreground},
		},
		"client changes policy": {
			rest.DeleteDependents, []string{orphan, other}, policy(metav1.DeletePropagationForeground),
			[]string{other, foreground},
		},
		"existing finalizer": {
			rest.DeleteDependents, []string{foreground}, &metav1.DeleteOptions{}, []string{foreground},
		},
		"background removes finalizers": {
			rest.DeleteDependents, []string{foreground, other}, policy(metav1.DeletePropagationBackground), []string{other},
		},
		"old option, true": {
			rest.DeleteDependents, nil, &metav1.DeleteOptions{OrphanDependents: ptr.To(true)}, []string{orphan},
		},
		"old option, false": {
			rest.OrphanDependents, []string{orphan}, &metav1.DeleteOptions{OrphanDependents: ptr.To(false)}, []string{},
		},
		"not collected": {rest.Unsupported, nil, policy(metav1.DeletePropagationOrphan), nil},
	} {
		got := CollectionFinalizers(t.Context(), collected{policy: c.standard}, c.finalizers, c.options)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestMarkDeleting(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	object := &metav1.ObjectMeta{Generation: 3}
	MarkDeleting(object, now)
	if object.Generation != 4 || !object.DeletionTimestamp.Equal(&now) || *object.DeletionGracePeriodSeconds != 0 {
		t.Errorf("got %+v", object)
	}
	later := metav1.NewTime(now.Add(time.Hour))
	MarkDeleting(object, later)
	if object.Generation != 4 || !object.DeletionTimestamp.Equal(&now) {
		t.Errorf("marked again: %+v", object)
	}
}

func TestDeletionComplete(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		after, before metav1.ObjectMeta
		want          bool
	}{
		"not deleted": {metav1.ObjectMeta{}, metav1.ObjectMeta{Finalizers: []string{"x"}}, false},
		"last finalizer": {
			metav1.ObjectMeta{DeletionTimestamp: &now},
			metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: ptr.To[int64](0)}, true,
		},
		"one finalizer left": {
			metav1.ObjectMeta{DeletionTimestamp: &now, Finalizers: []string{"x"}},
			metav1.ObjectMeta{DeletionTimestamp: &now}, false,
		},
		"grace period runs": {
			metav1.ObjectMeta{DeletionTimestamp: &now},
			metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: ptr.To[int64](30)}, false,
		},
		"without grace period": {
			metav1.ObjectMeta{DeletionTimestamp: &now}, metav1.ObjectMeta{DeletionTimestamp: &now}, true,
		},
	} {
		after, before := metav1.PartialObjectMetadata{ObjectMeta: c.after}, metav1.PartialObjectMetadata{ObjectMeta: c.before}
		if got := DeletionComplete(&after, &before); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
