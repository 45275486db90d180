package builtin_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"quorate.dev/apiserver/encoding/row"
)

// moments are durations after which ages are shown in each way that duration.HumanDuration has.
var moments = []time.Duration{
	0, time.Second, 58 * time.Second, 2 * time.Minute, 10*time.Minute + time.Second, 3 * time.Hour, 9 * time.Hour,
	3 * 24 * time.Hour, 9 * 24 * time.Hour, 800 * 24 * time.Hour, 9 * 365 * 24 * time.Hour,
}

// TestSharedRows prints the rows of upstream's samples of all kinds, in which every field is set, at many moments, and
// compares them with the rows that their templates have at these moments. At first, one time is in the future.
func TestSharedRows(t *testing.T) {
	directory := filepath.Join(moduleDirectory(t, "k8s.io/api"), "testdata", "HEAD")
	kinds := sampleKinds(t)
	var shared, unshared []string
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		kind := kinds[name]
		sample, err := os.ReadFile(filepath.Join(directory, name+".json"))
		if errors.Is(err, fs.ErrNotExist) || !kind.stored {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []time.Duration{-47 * time.Second, 47 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				if followsTime(t, kind, withTimes(sample, step)) {
					shared = append(shared, name)
				} else {
					unshared = append(unshared, name)
				}
			})
		}
	}
	// Jobs show the duration between two times, if the second is later, and the others show times as they are.
	want := []string{
		"batch.v1.Job", "core.v1.LimitRange", "core.v1.LimitRange", "rbac.authorization.k8s.io.v1.ClusterRole",
		"rbac.authorization.k8s.io.v1.ClusterRole", "rbac.authorization.k8s.io.v1.Role",
		"rbac.authorization.k8s.io.v1.Role", "storage.k8s.io.v1.CSIStorageCapacity",
		"storage.k8s.io.v1.CSIStorageCapacity",
	}
	if diff := cmp.Diff(want, unshared); diff != "" || len(shared) < 150 {
		t.Errorf("%d rows are shared; these are not: (- want, + got)\n%s", len(shared), diff)
	}
}

// withTimes returns a sample with another time in place of each one: the first is a minute in the future, and each
// further one is later by the step.
func withTimes(sample []byte, step time.Duration) []byte {
	next := time.Now().Add(time.Minute)
	return regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`).ReplaceAllFunc(sample, func(old []byte) []byte {
		layout := `"2006-01-02T15:04:05Z"`
		if len(old) > len(layout) {
			layout = `"2006-01-02T15:04:05.000000Z"`
		}
		text := next.UTC().Format(layout)
		next = next.Add(step)
		return []byte(text)
	})
}

// followsTime compares the rows of a template with printed rows. It returns false if the row of the sample is not
// shared.
func followsTime(t *testing.T, kind sampled, sample []byte) bool {
	internal := decode(t, kind.model, sample, runtime.ContentTypeJSON)
	template := must[row.Template](t)(row.Make(t.Context(), kind.printer, internal.DeepCopyObject()))
	if template.IsNone() {
		return false
	}
	for _, moment := range moments {
		<-time.After(moment)
		table := must[*metav1.Table](t)(kind.printer.ConvertToTable(t.Context(), internal, &metav1.TableOptions{}))
		want := must[[]byte](t)(row.Cells(nil, &table.Rows[0]))
		if got := template.Append(nil, time.Now()); string(got) != string(want) {
			t.Errorf("%s after %v: got %s, want %s", kind.kind.Kind, moment, got, want)
		}
	}
	return true
}

// TestPrintedLists prints two objects of each kind as a list and one by one. The rows must be equal, except for the
// kinds whose lists are printed together. Every object is marked as the default of its kind.
func TestPrintedLists(t *testing.T) {
	directory := filepath.Join(moduleDirectory(t, "k8s.io/api"), "testdata", "HEAD")
	kinds := sampleKinds(t)
	var together []string
	for _, d := range everything(t) {
		for _, v := range d.Versions {
			if v.PrintedList != nil {
				together = append(together, v.Kind.Kind)
			}
		}
	}
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		sample, err := os.ReadFile(filepath.Join(directory, name+".json"))
		if errors.Is(err, fs.ErrNotExist) || !kinds[name].stored {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		sample = bytes.Replace(sample, []byte(`"annotationsKey": "annotationsValue"`),
			[]byte(`"storageclass.kubernetes.io/is-default-class": "true"`), 1)
		if alone, list := printedBothWays(t, kinds[name], sample); !slices.Equal(alone, list) {
			differ = append(differ, kinds[name].kind.Kind)
		}
	}
	slices.Sort(together)
	slices.Sort(differ)
	if together, differ = slices.Compact(together), slices.Compact(differ); !slices.Equal(together, differ) {
		t.Errorf("lists of %v are printed together, rows of %v differ", together, differ)
	}
}

// printedBothWays returns the rows of objects called b and a, printed one by one and as a list in this order.
func printedBothWays(t *testing.T, kind sampled, sample []byte) (alone, list []string) {
	t.Helper()
	var objects []runtime.Object
	for _, name := range []string{"b", "a"} {
		object := decode(t, kind.model, sample, runtime.ContentTypeJSON)
		must[metav1.Object](t)(meta.Accessor(object)).SetName(name)
		objects = append(objects, object)
		alone = append(alone, rowsOf(t, kind, object)...)
	}
	known, _, err := legacyscheme.Scheme.ObjectKinds(objects[0])
	if err != nil {
		return alone, alone // kinds of other schemes have printers of their own
	}
	internal := known[0]
	internal.Kind += "List"
	all, err := legacyscheme.Scheme.New(internal)
	if err != nil {
		t.Fatal(err)
	}
	if err := meta.SetList(all, objects); err != nil {
		t.Fatal(err)
	}
	return alone, rowsOf(t, kind, all)
}

func rowsOf(t *testing.T, kind sampled, object runtime.Object) (rows []string) {
	t.Helper()
	table := must[*metav1.Table](t)(kind.printer.ConvertToTable(t.Context(), object, &metav1.TableOptions{}))
	for i := range table.Rows {
		rows = append(rows, string(must[[]byte](t)(row.Cells(nil, &table.Rows[i]))))
	}
	return rows
}
