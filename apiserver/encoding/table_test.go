package encoding

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/codec"
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

// columns is a TableConvertor of pods with one column, whose rows have a condition if the pod has completed. It fails
// for a pod called "bad".
type columns struct{}

func (columns) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	pod := object.(*corev1.Pod)
	if pod.Name == "bad" {
		return nil, errors.New("no row for the pod")
	}
	row := metav1.TableRow{Cells: []any{pod.Name}}
	if pod.Status.Phase == corev1.PodSucceeded {
		row.Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue}}
	}
	return &metav1.Table{
		ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}}, Rows: []metav1.TableRow{row},
	}, nil
}

// TestTableForms encodes tables in both versions of meta.k8s.io, with whole objects and with conditions.
func TestTableForms(t *testing.T) {
	t.Parallel()
	m := pods()
	m.Version.Table = columns{}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	const (
		definitions = `"columnDefinitions":[{"name":"Name","type":"string","format":"","description":"","priority":0}]`
		conditions  = `"conditions":[{"type":"Completed","status":"True"}]`
	)
	for include, want := range map[metav1.IncludeObjectPolicy]string{
		metav1.IncludeMetadata: `"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1",` +
			`"metadata":{"name":"a"}}`,
		metav1.IncludeObject: `"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{`,
		metav1.IncludeNone:   `"object":null`,
	} {
		table := Table{
			Resource: m, Group: metav1beta1.SchemeGroupVersion, Options: &metav1.TableOptions{IncludeObject: include},
		}
		got, err := table.One(t.Context(), pod)
		if err != nil || !json.Valid(got) {
			t.Fatalf("%s: got %s, %v", include, got, err)
		}
		for _, part := range []string{
			`{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{},`, definitions,
			`{"cells":["a"],` + conditions, want,
		} {
			if !strings.Contains(string(got), part) {
				t.Errorf("%s: %s is not in %s", include, part, got)
			}
		}
		if _, err := table.One(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}); err == nil {
			t.Errorf("%s: no error for a pod without a row", include)
		}
		if format := table.Metadata(); format.Shape != MetadataV1beta1 || format.Media != codec.JSON {
			t.Errorf("the metadata in rows has the format %+v", format)
		}
	}
}

// TestTableOfAList encodes the parts around the rows of a list. The metadata of the list becomes the table's.
func TestTableOfAList(t *testing.T) {
	t.Parallel()
	m := pods()
	m.Version.Table = columns{}
	table := Table{Resource: m, Group: metav1.SchemeGroupVersion, Options: &metav1.TableOptions{NoHeaders: true}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	got, err := table.AppendHead(t.Context(), nil, pod, metav1.ListMeta{ResourceVersion: "9", Continue: "next"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9","continue":"next"},` +
		`"columnDefinitions":null,"rows":[`
	if got = table.AppendTail(got); string(got) != want+"]}" {
		t.Errorf("got %s, want %s", got, want)
	}
}
