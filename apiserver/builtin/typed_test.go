package builtin_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	builtinschema "quorate.dev/apiserver/builtin/schema"
)

// TestGoTypesFitTheirSchema validates upstream's samples, in which every field is set, against the schema of managed
// fields: skipping the validation of objects of Go types is safe, and their fields are the same without it.
func TestGoTypesFitTheirSchema(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds under the race detector")
	}
	converter, err := builtinschema.NewLoaderForAllVersions().For(legacyscheme.Scheme)()
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(moduleDirectory(t, "k8s.io/api"), "testdata", "HEAD")
	kinds := sampleKinds(t)
	tried := 0
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		sample, err := os.ReadFile(filepath.Join(directory, name+".json"))
		if err != nil || !kinds[name].stored {
			continue
		}
		tried++
		t.Run(name, func(t *testing.T) {
			internal := decode(t, kinds[name].model, compact(sample), runtime.ContentTypeJSON)
			object := must[runtime.Object](t)(kinds[name].model.External(internal))
			validated := must[*typed.TypedValue](t)(converter.ObjectToTyped(object))
			trusted := must[*typed.TypedValue](t)(converter.ObjectToTyped(object, typed.AllowDuplicates))
			wanted, got := fieldsOf(t, validated), fieldsOf(t, trusted)
			if wanted.Empty() || !wanted.Equals(got) {
				t.Errorf("%s\nas validated: %s", got, wanted)
			}
			if difference, err := validated.Compare(trusted); err != nil || !difference.IsSame() {
				t.Errorf("%v %v", difference, err)
			}
		})
	}
	if tried < 60 {
		t.Errorf("only %d samples were found", tried)
	}
}

func fieldsOf(t *testing.T, value *typed.TypedValue) *fieldpath.Set {
	t.Helper()
	return must[*fieldpath.Set](t)(value.ToFieldSet())
}
