package encoding

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

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
	m.Version.NullRows = true
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

// TestSharedRow encodes the row of a stored pod with times in place of ages, and completes it with and without
// metadata.
func TestSharedRow(t *testing.T) {
	t.Parallel()
	m := pods()
	m.Version.Table = columns{}
	stored := store(t, m)
	table := Table{Resource: m, Group: metav1.SchemeGroupVersion, Options: &metav1.TableOptions{}}
	if !table.SharesRows() {
		t.Error("rows with metadata are not shared")
	}
	format := table.Rows()
	if size := format.EstimateSize(stored); size <= 0 {
		t.Errorf("the estimated size of a row is %d", size)
	}
	template, err := format.Encode(t.Context(), stored, 7)
	if err != nil {
		t.Fatal(err)
	}
	metadata := []byte(`{"metadata":{"name":"a"}}`)
	want := `{"cells":["a"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}}`
	if got := table.AppendShared(nil, template, metadata, time.Now()); string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	table.Options.IncludeObject = metav1.IncludeNone
	if got := table.AppendShared(nil, template, nil, time.Now()); string(got) != `{"cells":["a"],"object":null}` {
		t.Errorf("without objects: got %s", got)
	}
	if table.Options.IncludeObject = metav1.IncludeObject; table.SharesRows() {
		t.Error("rows with whole objects are shared")
	}
	if _, err := format.Encode(t.Context(), []byte("no object"), 7); err == nil {
		t.Error("bytes that are no object have a row")
	}
}

// TestPrintedTogether encodes the rows of a list in the order in which it is printed.
func TestPrintedTogether(t *testing.T) {
	t.Parallel()
	m := pods()
	m.Version.Table = reversed{}
	table := Table{Resource: m, Group: metav1.SchemeGroupVersion, Options: &metav1.TableOptions{}}
	list := &corev1.PodList{Items: []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}},
	}}
	got, err := table.AppendList(t.Context(), nil, list)
	want := regexp.MustCompile(`^{"cells":\["b"\],"object":{.*"name":"b"}}},{"cells":\["a"\],"object":{.*"name":"a"}}}$`)
	if err != nil || !want.Match(got) {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := table.AppendList(t.Context(), nil, &corev1.PodList{}); err == nil {
		t.Error("no error of a printer that fails")
	}
}

// reversed is a TableConvertor of lists of pods, which prints the last pod first and fails for empty lists.
type reversed struct{}

func (reversed) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	list := object.(*corev1.PodList)
	if len(list.Items) == 0 {
		return nil, errors.New("the list is empty")
	}
	table := &metav1.Table{}
	for i := range list.Items {
		pod := &list.Items[len(list.Items)-1-i]
		table.Rows = append(table.Rows, metav1.TableRow{
			Cells: []any{pod.Name}, Object: runtime.RawExtension{Object: pod},
		})
	}
	return table, nil
}
