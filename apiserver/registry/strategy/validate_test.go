package strategy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

// TestManyErrors creates and updates objects with thousands of invalid entries: the response has the first hundred
// errors.
func TestManyErrors(t *testing.T) {
	server := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := genericrequest.WithNamespace(builtintest.WithUser(t.Context(), "alice", "system:masters"), "default")
	key := resource.Key{GroupResource: schema.GroupResource{Resource: "configmaps"}, Namespace: "default", Name: "many"}
	client := server.Client
	const number = 4000
	entries := func(valid bool) map[string]string {
		all := map[string]string{}
		for i := range number {
			name := fmt.Sprint("key-", i)
			if !valid {
				name += "/*?"
			}
			all[name] = ""
		}
		return all
	}
	object := func(data, labels map[string]string) runtime.Object {
		return &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "many", Namespace: "default", Labels: labels}, Data: data}
	}
	create := func(ctx context.Context, o runtime.Object) error {
		_, err := client.Create(ctx, key, o, resource.WriteOptions{})
		return err
	}
	update := func(ctx context.Context, o runtime.Object) error {
		_, err := client.Update(ctx, key, func(current runtime.Object) error {
			changed := o.(*core.ConfigMap)
			current.(*core.ConfigMap).Data, current.(*core.ConfigMap).Labels = changed.Data, changed.Labels
			return nil
		}, resource.WriteOptions{})
		return err
	}
	check := func(what string, err error) {
		t.Helper()
		var status *apierrors.StatusError
		if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
			t.Fatalf("%s: got %v, want Invalid", what, err)
		}
		message, causes := status.ErrStatus.Message, len(status.ErrStatus.Details.Causes)
		if causes != 100 || len(message) > 100<<10 ||
			!strings.Contains(message, fmt.Sprintf("(100 shown of %d errors)", number)) {
			t.Errorf("%s: %d causes, %d bytes: ...%s", what, causes, len(message), message[max(0, len(message)-200):])
		}
	}
	check("create with invalid keys", create(ctx, object(entries(false), nil)))
	check("create with invalid labels", create(ctx, object(nil, entries(false))))
	if err := create(ctx, object(entries(true), nil)); err != nil {
		t.Fatal(err)
	}
	check("update with invalid keys", update(ctx, object(entries(false), nil)))
	check("update with invalid labels", update(ctx, object(nil, entries(false))))
}
