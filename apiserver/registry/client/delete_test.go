package client_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

// TestDeleteWithoutOptions deletes an object with nil options, which mean the same as empty options.
func TestDeleteWithoutOptions(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	key := resource.Key{GroupResource: configMaps, Namespace: "one", Name: "a"}
	object := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "a"}}
	builtintest.Must[runtime.Object](t)(s.Create(t.Context(), key, object, resource.WriteOptions{}))
	if err := s.Delete(t.Context(), key, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: got the error %v", err)
	}
}
