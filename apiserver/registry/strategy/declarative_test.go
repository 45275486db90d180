package strategy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"

	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// storageClasses is a target whose strategy has declarative validation.
func storageClasses() resource.Target {
	endpoint := &resource.Endpoint{Create: storageclass.Strategy, Update: storageclass.Strategy}
	version := &resource.Version{Name: "v1", Endpoints: map[string]*resource.Endpoint{"": endpoint}}
	definition := &resource.Definition{Group: "storage.k8s.io", Plural: "storageclasses"}
	return resource.Target{Match: resource.Match{Definition: definition, Version: version}, Endpoint: endpoint}
}

// newStorageClass returns a class with a number of topologies that are invalid, because they have no keys.
func newStorageClass(provisioner string, topologies int) *storage.StorageClass {
	policy, mode := core.PersistentVolumeReclaimDelete, storage.VolumeBindingImmediate
	class := &storage.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "class", ResourceVersion: "1"},
		Provisioner: provisioner, ReclaimPolicy: &policy, VolumeBindingMode: &mode,
	}
	for i := range topologies {
		class.AllowedTopologies = append(class.AllowedTopologies, core.TopologySelectorTerm{
			MatchLabelExpressions: []core.TopologySelectorLabelRequirement{{Key: fmt.Sprint(i)}},
		})
	}
	return class
}

// TestDeclarativeValidation creates and updates objects that violate handwritten and declarative rules. Declarative
// errors replace the handwritten errors of the same fields, and follow all other handwritten errors. The test
// compares the errors with upstream's.
func TestDeclarativeValidation(t *testing.T) {
	ctx := genericrequest.WithNamespace(t.Context(), "")
	ctx = genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{
		IsResourceRequest: true, APIGroup: "storage.k8s.io", APIVersion: "v1", Resource: "storageclasses",
	})
	created := func() *storage.StorageClass {
		class := newStorageClass("", 1)
		rest.FillObjectMetaSystemFields(class)
		return class
	}
	updated := newStorageClass("example.com/b", 0)
	updated.Parameters = map[string]string{"a": "b"}
	for name, run := range map[string]struct{ ours, upstream func() error }{
		"create": {
			func() error { return strategy.BeforeCreate(ctx, storageClasses(), created()) },
			func() error { return rest.BeforeCreate(storageclass.Strategy, ctx, created()) },
		},
		"update": {
			func() error {
				return strategy.BeforeUpdate(ctx, storageClasses(), updated.DeepCopy(), newStorageClass("example.com/a", 0))
			},
			func() error {
				return rest.BeforeUpdate(
					storageclass.Strategy, ctx, updated.DeepCopy(), newStorageClass("example.com/a", 0))
			},
		},
	} {
		got, want := run.ours(), run.upstream()
		if !apierrors.IsInvalid(got) {
			t.Fatalf("%s: got %v, want Invalid", name, got)
		}
		if difference := cmp.Diff(want.Error(), got.Error()); difference != "" {
			t.Errorf("%s (- upstream, + ours)\n%s", name, difference)
		}
		if fields := causes(got); fields[len(fields)-1] != "provisioner" && fields[0] != "provisioner" {
			t.Errorf("%s: the errors of %v are not in the order of declarative validation", name, fields)
		}
	}
}

// causes returns the fields of the errors of an invalid object.
func causes(err error) (fields []string) {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		for _, cause := range status.ErrStatus.Details.Causes {
			fields = append(fields, cause.Field)
		}
	}
	return fields
}

// TestMoreErrorsThanShown creates an object with more handwritten errors than a response shows. Declarative errors
// still replace handwritten errors, and the errors in the response are the first errors of upstream's list.
func TestMoreErrorsThanShown(t *testing.T) {
	ctx := genericrequest.WithNamespace(t.Context(), "")
	ctx = genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{
		IsResourceRequest: true, APIGroup: "storage.k8s.io", APIVersion: "v1", Resource: "storageclasses",
	})
	created := func() *storage.StorageClass {
		class := newStorageClass("", 250)
		rest.FillObjectMetaSystemFields(class)
		return class
	}
	all := causes(rest.BeforeCreate(storageclass.Strategy, ctx, created()))
	err := strategy.BeforeCreate(ctx, storageClasses(), created())
	if difference := cmp.Diff(all[:100], causes(err)); difference != "" {
		t.Errorf("(- upstream, + ours)\n%s", difference)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("(100 shown of %d errors)", len(all))) {
		t.Errorf("the message does not have the number of errors, %d", len(all))
	}
}

// TestManyHandwrittenErrors creates an object with so many handwritten errors that declarative validation does not
// run, because upstream would compare each declarative error with each handwritten error. The RequestInfo of the test
// has no version, so that declarative validation would fail.
func TestManyHandwrittenErrors(t *testing.T) {
	ctx := genericrequest.WithNamespace(t.Context(), "")
	ctx = genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{})
	const number = 400
	class := newStorageClass("example.com/a", number)
	rest.FillObjectMetaSystemFields(class)
	err := strategy.BeforeCreate(ctx, storageClasses(), class)
	if !apierrors.IsInvalid(err) || len(causes(err)) != 100 ||
		!strings.Contains(err.Error(), fmt.Sprintf("(100 shown of %d errors)", number)) {
		t.Errorf("got %d errors, want 100 of %d", len(causes(err)), number)
	}
}
