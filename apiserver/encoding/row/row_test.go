package row_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"quorate.dev/apiserver/encoding/row"
)

// printer prints objects with a function that returns the cells.
type printer func(runtime.Object) []any

func (p printer) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	cells := p(object)
	if cells == nil {
		return nil, errors.New("no cells")
	}
	return &metav1.Table{Rows: []metav1.TableRow{{
		Cells: cells, Conditions: []metav1.TableRowCondition{{Type: "Completed", Status: "True"}},
	}}}, nil
}

// since returns the age of a time, as upstream's printers show it.
func since(t metav1.Time) string { return duration.HumanDuration(time.Since(t.Time)) }

// pod returns a pod with two times, and a third in a map of another kind of value.
func pod(name string, age, restart time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Status:     corev1.PodStatus{StartTime: &metav1.Time{Time: time.Now().Add(-restart)}},
	}
}

// expect compares the row of a template with a text.
func expect(t *testing.T, template row.Template, want string) {
	t.Helper()
	if template.IsNone() {
		t.Fatalf("there is no template for %s", want)
	}
	want = `{"cells":[` + want + `],"conditions":[{"type":"Completed","status":"True"}]`
	if got := string(template.Append(nil, time.Now())); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestAges fills in the ages of a row as time passes. The row has no age, one in the middle of a cell, the same age
// twice, a text that looks like a replaced age, and a time in the future.
func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		show := printer(func(object runtime.Object) []any {
			pod := object.(*corev1.Pod)
			return []any{
				pod.Name, 3, fmt.Sprintf("2 (%s ago)", since(*pod.Status.StartTime)), since(pod.CreationTimestamp),
				since(pod.CreationTimestamp), nil, "<none>",
			}
		})
		templateOf := func(object runtime.Object) row.Template {
			template, err := row.Make(t.Context(), show, object)
			if err != nil {
				t.Fatal(err)
			}
			return template
		}
		a, future := templateOf(pod("a", time.Hour, time.Minute)), templateOf(pod("f", -time.Minute, time.Second))
		expect(t, a, `"a",3,"2 (60s ago)","60m","60m",null,"\u003cnone\u003e"`)
		expect(t, future, `"f",3,"2 (1s ago)","\u003cinvalid\u003e","\u003cinvalid\u003e",null,"\u003cnone\u003e"`)
		<-time.After(90 * time.Second)
		expect(t, a, `"a",3,"2 (2m30s ago)","61m","61m",null,"\u003cnone\u003e"`)
		expect(t, future, `"f",3,"2 (91s ago)","30s","30s",null,"\u003cnone\u003e"`)
		if template := templateOf(pod("pod-110y", time.Hour, time.Minute)); !template.IsNone() {
			t.Errorf("a name was taken for an age: %q", template)
		}
		expect(t, templateOf(pod("pod-250y", time.Hour, time.Minute)),
			`"pod-250y",3,"2 (60s ago)","60m","60m",null,"\u003cnone\u003e"`)
	})
}

// TestRowsThatAreNotShared makes no templates of rows that use times in other ways.
func TestRowsThatAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, show := range map[string]printer{
			"the duration between two times": func(object runtime.Object) []any {
				pod := object.(*corev1.Pod)
				return []any{duration.HumanDuration(pod.Status.StartTime.Sub(pod.CreationTimestamp.Time))}
			},
			"a time as it is": func(object runtime.Object) []any {
				return []any{object.(*corev1.Pod).CreationTimestamp.UTC().Format(time.RFC3339)}
			},
			"the time until a time in the future": func(object runtime.Object) []any {
				return []any{duration.HumanDuration(time.Until(object.(*corev1.Pod).DeletionTimestamp.Time))}
			},
			"a decision": func(object runtime.Object) []any {
				return []any{time.Since(object.(*corev1.Pod).CreationTimestamp.Time) > 2*time.Hour}
			},
			"a failure with other times": func(object runtime.Object) []any {
				if time.Since(object.(*corev1.Pod).CreationTimestamp.Time) > 2*time.Hour {
					return nil
				}
				return []any{}
			},
		} {
			object := pod("a", time.Hour, time.Minute)
			object.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Hour)}
			if template, err := row.Make(t.Context(), show, object); err != nil || !template.IsNone() {
				t.Errorf("%s: got %q, %v", name, template, err)
			}
		}
		failing := printer(func(runtime.Object) []any { return nil })
		if _, err := row.Make(t.Context(), failing, pod("a", 0, 0)); err == nil {
			t.Error("no error of a printer that fails")
		}
		two := &corev1.Event{}
		for i := range 200 {
			two.ManagedFields = append(two.ManagedFields,
				metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: time.Now().Add(time.Duration(-i) * time.Second)}})
		}
		name := printer(func(runtime.Object) []any { return []any{"a"} })
		if template, err := row.Make(t.Context(), name, two); err != nil || !template.IsNone() {
			t.Errorf("too many times: got %q, %v", template, err)
		}
	})
}

// withTimes is an object with a time that cannot be replaced, because it is in a map.
type withTimes struct {
	corev1.Pod
	Seen map[string]metav1.Time
}

func TestTimesInMaps(t *testing.T) {
	t.Parallel()
	show := printer(func(object runtime.Object) []any { return []any{since(object.(*withTimes).Seen["a"])} })
	object := &withTimes{Seen: map[string]metav1.Time{"a": metav1.NewTime(time.Now().Add(-time.Hour))}}
	if template, err := row.Make(t.Context(), show, object); err != nil || !template.IsNone() {
		t.Errorf("got %q, %v", template, err)
	}
}

// TestCustomResources fills in the ages of a row with printer columns, of which one is a date in a list.
func TestCustomResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		show, err := tableconvertor.New([]apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Size", Type: "integer", JSONPath: ".spec.size"},
			{Name: "Since", Type: "date", JSONPath: ".status.conditions[0].lastTransitionTime"},
			{Name: "Wrong", Type: "date", JSONPath: ".spec.text"},
			{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		})
		if err != nil {
			t.Fatal(err)
		}
		ago := func(d time.Duration) string { return time.Now().Add(-d).Format(time.RFC3339) }
		object := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "a", "creationTimestamp": ago(time.Hour)},
			"spec":     map[string]any{"size": int64(3), "text": "2026-01-01 is no time as in RFC 3339"},
			"status":   map[string]any{"conditions": []any{map[string]any{"lastTransitionTime": ago(3 * time.Minute)}}},
		}}
		template, err := row.Make(t.Context(), show, object)
		if err != nil || template.IsNone() {
			t.Fatalf("got %q, %v", template, err)
		}
		<-time.After(time.Minute)
		want := `{"cells":["a",3,"4m","\u003cinvalid\u003e","61m"]`
		if got := string(template.Append(nil, time.Now())); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestTimesWithShortHours replaces times whose hour has one digit, which printers accept.
func TestTimesWithShortHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		show, err := tableconvertor.New([]apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "At", Type: "date", JSONPath: ".spec.at"},
		})
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"at": "1999-12-31T9:00:00Z"},
		}}
		template, err := row.Make(t.Context(), show, object)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if got := string(template.Append(nil, time.Now())); got != `{"cells":["a","16h"]` {
			t.Errorf("got %s", got)
		}
	})
}

// FuzzTimes checks that each string that printers show as an age is replaced.
func FuzzTimes(f *testing.F) {
	for _, text := range []string{
		"2026-01-01T00:00:00Z", "1999-12-31T9:00:00Z", "2026-01-01T00:00:00.5+01:00", "0001-01-01T00:00:00Z", "null",
	} {
		f.Add(text)
	}
	show, err := tableconvertor.New([]apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "At", Type: "date", JSONPath: ".at"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var shown metav1.Time
		if shown.UnmarshalQueryParameter(text) != nil || shown.IsZero() {
			return
		}
		object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "at": text}}
		template, err := row.Make(t.Context(), show, object)
		if err != nil || template.IsNone() {
			return
		}
		later := shown.Add(500 * 24 * time.Hour)
		if got := string(template.Append(nil, later)); got != `{"cells":["a","500d"]` {
			t.Errorf("%s: got %s", text, got)
		}
	})
}

// TestTickWhilePrinting makes a template although an age changes while the object is printed.
func TestTickWhilePrinting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		show := printer(func(object runtime.Object) []any {
			age := since(object.(*corev1.Pod).CreationTimestamp)
			<-time.After(time.Millisecond)
			return []any{age}
		})
		template, err := row.Make(t.Context(), show, pod("a", time.Minute-time.Millisecond/2, time.Second))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, template, `"60s"`)
	})
}

// TestLongRows makes a template with pieces whose lengths need more than one byte.
func TestLongRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1000)
		show := printer(func(object runtime.Object) []any {
			return []any{long, since(object.(*corev1.Pod).CreationTimestamp), long}
		})
		template, err := row.Make(t.Context(), show, pod("a", time.Second, time.Second))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, template, `"`+long+`","1s","`+long+`"`)
	})
}
