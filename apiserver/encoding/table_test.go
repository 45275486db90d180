package encoding

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// TestTable encodes rows with each kind of object, and tables without rows.
func TestTable(t *testing.T) {
	m := pods()
	m.Version.Table = rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "pods"})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	const head = `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":null,"rows":[`
	const cells = `{"cells":["a","0001-01-01T00:00:00Z"],"object":`
	const metadata = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}`
	table := func(include metav1.IncludeObjectPolicy) Table {
		return Table{
			Resource: m, Group: metav1.SchemeGroupVersion, Options: &metav1.TableOptions{
				NoHeaders: true, IncludeObject: include,
			},
		}
	}
	for include, want := range map[metav1.IncludeObjectPolicy]string{
		metav1.IncludeNone: head + cells + "null}]}", "": head + cells + metadata + "}]}",
	} {
		if got, err := table(include).One(t.Context(), pod); err != nil || string(got) != want {
			t.Errorf("%q: got %s, want %s: %v", include, got, want, err)
		}
	}
	shared, err := table("").AppendRows(t.Context(), nil, pod, []byte(`{"metadata":{"name":"shared"}}`))
	if want := cells +
		`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"shared"}}}`; err != nil ||
		string(shared) != want {
		t.Errorf("got %s, want %s: %v", shared, want, err)
	}
	if got, err := table("").Empty(t.Context(), metav1.ListMeta{}); err != nil || string(got) != head+"]}" {
		t.Errorf("no rows: got %s, %v", got, err)
	}
	m.Version.Plain = true
	if got, err := table("").Empty(t.Context(), metav1.ListMeta{}); err != nil ||
		string(got) != head[:len(head)-1]+"null}" {
		t.Errorf("no rows, plain: got %s, %v", got, err)
	}
}
