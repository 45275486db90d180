package resource

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fakeCodec decodes the stored bytes into the data of a config map.
type fakeCodec struct {
	Codec
	err error
}

func (c fakeCodec) Load(_ context.Context, stored []byte) (runtime.Object, error) {
	return &corev1.ConfigMap{Data: map[string]string{"stored": string(stored)}}, c.err
}

func (c fakeCodec) LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error) {
	return c.Load(ctx, stored)
}

func (fakeCodec) External(internal runtime.Object) (runtime.Object, error) { return internal, nil }

func TestLoadExternalDecorates(t *testing.T) {
	failure := errors.New("malformed")
	decorate := func(internal runtime.Object) { internal.(*corev1.ConfigMap).Data["decorated"] = "true" }
	for name, test := range map[string]struct {
		decorate func(runtime.Object)
		err      error
		want     string
	}{
		"without Decorate": {nil, nil, ""},
		"with Decorate":    {decorate, nil, "true"},
		"malformed bytes":  {decorate, failure, ""},
	} {
		d := &Definition{Decorate: test.decorate}
		object, err := d.LoadExternal(t.Context(), &Version{Codec: fakeCodec{err: test.err}}, []byte("x"))
		if !errors.Is(err, test.err) {
			t.Errorf("%s: error %v, want %v", name, err, test.err)
		}
		if err != nil {
			continue
		}
		if data := object.(*corev1.ConfigMap).Data; data["stored"] != "x" || data["decorated"] != test.want {
			t.Errorf("%s: %v", name, data)
		}
	}
}

func TestVersion(t *testing.T) {
	d := define(BuiltIn, "apps", "things", "v1", "v1beta1")
	if v := d.Version("v1beta1"); v != d.Versions[1] {
		t.Errorf("got %+v", v)
	}
	if v := d.Version("v2"); v != nil {
		t.Errorf("found a version that is not served: %+v", v)
	}
	if got, want := d.GroupResource(), (schema.GroupResource{Group: "apps", Resource: "things"}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCatalogHolder(t *testing.T) {
	var holder CatalogHolder
	old, current := NewCatalog(define(Custom, "example.com", "widgets", "v1")), NewCatalog()
	holder.Publish(old)
	loaded := holder.Current()
	holder.Publish(current)
	if holder.Current() != current {
		t.Error("the current catalog is not the last one published")
	}
	if _, ok := loaded.Lookup("example.com", "v1", "widgets"); !ok {
		t.Error("Publish changed a catalog that a request has loaded")
	}
}

func TestManager(t *testing.T) {
	if got := Manager(t.Context()); got != "kube-apiserver" {
		t.Errorf("default manager %q", got)
	}
	if got := Manager(WithManager(t.Context(), "one")); got != "one" {
		t.Errorf("got %q", got)
	}
}

// TestPreconditionError checks that the message is the message of kube-apiserver's storage.Preconditions.
func TestPreconditionError(t *testing.T) {
	err := &PreconditionError{What: "UID", Wanted: "a", Actual: "b"}
	if got, want := err.Error(), "Precondition failed: UID in precondition: a, UID in object meta: b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
