package jsonpatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	library "gopkg.in/evanphx/json-patch.v4"
)

// reference applies a JSON patch with the library. It reports false if the library panics.
func reference(document, patch string) (after []byte, err error, ok bool) { //nolint:revive // the order of apply's results
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	operations, err := library.DecodePatch([]byte(patch))
	if err != nil {
		return nil, err, true
	}
	after, err = operations.Apply([]byte(document))
	return after, err, true
}

// apply applies a JSON patch with this package.
func apply(document, patch string) ([]byte, error) {
	operations, err := Decode([]byte(patch))
	if err != nil {
		return nil, err
	}
	return Apply([]byte(document), operations)
}

// document has the values that paths of tests lead to.
const document = `{"a":{"b":[1,{"c":"d"},null,[]],"":0,"x/y":{"~":true}},"l":["x","y","z"],"n":null,"s":"a\"]}b","e":1e3,` +
	`"d":{"k":1,"k":2}, "<":"<\u003c" , "o":{ "p" : [ ] } }`

// examples are patches of document. Most of them depend on details of the library that kube-apiserver uses, such as
// how it reads unusual indexes and pointers.
var examples = []string{
	`[]`, `null`, `{}`, `[null]`, `[{}]`, `[{"op":"spin","path":"/a"}]`, `[{"op":"add"}]`, `[{"op":"add","path":1}]`,
	`[{"op":"add","path":"","value":{}}]`, `[{"op":"add","path":"/","value":1}]`, `[{"op":"add","path":"a","value":1}]`,
	`[{"op":"add","path":"x/l/0","value":1}]`, `[{"op":"add","path":"/l/00","value":1}]`,
	`[{"op":"add","path":"/l/-1","value":1}]`, `[{"op":"add","path":"/l/-4","value":1}]`,
	`[{"op":"add","path":"/l/-5","value":1}]`, `[{"op":"add","path":"/l/3","value":1}]`,
	`[{"op":"add","path":"/l/4","value":1}]`, `[{"op":"add","path":"/l/-","value":null}]`,
	`[{"op":"add","path":"/l/+1","value":1}]`, `[{"op":"add","path":"/l/x","value":1}]`,
	`[{"op":"add","path":"/s/x","value":1}]`, `[{"op":"add","path":"/n/x","value":1}]`,
	`[{"op":"add","path":"/a/x~1y/~0","value":1}]`, `[{"op":"add","path":"/a/x~01y","value":1}]`,
	`[{"op":"add","path":"/new"}]`,
	`[{"op":"add","path":"/new","value":{"z":1,"z":2,"a":[1.0,1]}},{"op":"add","path":"/new/y","value":"\u00e4\ud800<"}]`,
	`[{"op":"remove","path":""}]`, `[{"op":"remove","path":"/none"}]`, `[{"op":"remove","path":"/none/x"}]`,
	`[{"op":"remove","path":"/l/3"}]`, `[{"op":"remove","path":"/l/-1"}]`, `[{"op":"remove","path":"/l/-4"}]`,
	`[{"op":"remove","path":"/l/-"}]`, `[{"op":"remove","path":"/n"}]`, `[{"op":"remove","path":"/a/b/3"}]`,
	`[{"op":"replace","path":"","value":{"a":1}}]`, `[{"op":"replace","path":"","value":[1]}]`,
	`[{"op":"replace","path":"","value":1}]`, `[{"op":"replace","path":"","value":null}]`, `[{"op":"replace","path":""}]`,
	`[{"op":"replace","path":"/none","value":1}]`, `[{"op":"replace","path":"/l/9","value":1}]`,
	`[{"op":"replace","path":"/l/-3","value":1}]`, `[{"op":"replace","path":"/d/k","value":3}]`,
	`[{"op":"test","path":"/d","value":{"k":2}}]`, `[{"op":"move","from":"/a","path":"/a/b"}]`,
	`[{"op":"move","from":"/l","path":"/a/b/0"}]`, `[{"op":"move","from":"/n","path":"/m"}]`,
	`[{"op":"move","from":"","path":"/m"}]`, `[{"op":"move","path":"/m"}]`, `[{"op":"move","from":"/l/0","path":"/l/-"}]`,
	`[{"op":"move","from":"/l/7","path":"/m"}]`, `[{"op":"copy","from":"/a","path":"/a/b/1/c"}]`,
	`[{"op":"copy","from":"/none","path":"/m"},{"op":"test","path":"/m","value":null}]`,
	`[{"op":"add","path":"/m","value":null},{"op":"copy","from":"/m","path":"/k"},{"op":"add","path":"/k/x","value":1}]`,
	`[{"op":"add","path":"/m","value":null},{"op":"copy","from":"/m","path":"/k"},{"op":"test","path":"/k","value":{}}]`,
	`[{"op":"add","path":"/m","value":null},{"op":"test","path":"/m","value":null},{"op":"add","path":"/m/x","value":1}]`,
	`[{"op":"test","path":"/n","value":null}]`, `[{"op":"test","path":"/n"}]`, `[{"op":"test","path":"/none"}]`,
	`[{"op":"test","path":"/n","value":0}]`, `[{"op":"test","path":"","value":{}}]`, `[{"op":"test","path":""}]`,
	`[{"op":"test","path":"/e","value":1000}]`, `[{"op":"test","path":"/e","value":1e3}]`,
	`[{"op":"test","path":"/s","value":"a\"]}b"}]`, `[{"op":"test","path":"/s"}]`,
	`[{"op":"test","path":"/l","value":["x","y","z"]},{"op":"test","path":"/l","value":["x"]}]`,
	`[{"op":"test","path":"/a/b","value":[1,{"c":"d"},null,[]]}]`, `[{"op":"test","path":"/a/b/1","value":[]}]`,
	`[{"op":"test","path":"/o/p","value":{}}]`,
	`[{"op":"add","path":"/o/p/0","value":1},{"op":"test","path":"/o","value":{"p":[1]}},{"op":"remove","path":"/o/p/0"},{"op":"test","path":"/o/p","value":[ ]}]`,
	`[{"op":"replace","path":"","value":[1,2]},{"op":"add","path":"/0","value":3},{"op":"remove","path":"/-1"},{"op":"test","path":"","value":[3,1]}]`,
}

// sameResult fails the test if two results of one patch differ.
func sameResult(t *testing.T, patch string, got, want []byte, err, wantErr error) {
	t.Helper()
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Errorf("%s: error %v, want %v", patch, err, wantErr)
	}
	if err == nil && wantErr == nil && string(got) != string(want) {
		t.Errorf("%s:\n%s, want\n%s", patch, got, want)
	}
}

func compareApply(t *testing.T, document, patch string) {
	t.Helper()
	got, err := apply(document, patch)
	if errors.Is(err, ErrTooMuchWork) {
		return
	}
	if want, wantErr, ok := reference(document, patch); ok {
		sameResult(t, patch, got, want, err, wantErr)
	} else if err == nil && !json.Valid(got) || err != nil && !errors.Is(err,
		ErrIncomplete) && !errors.Is(err, library.ErrTestFailed) {
		t.Errorf("%s: the library panics; %s, %v", patch, got, err)
	}
}

// TestApply compares the results of JSON patches with the library's.
func TestApply(t *testing.T) {
	for _, patch := range examples {
		compareApply(t, document, patch)
	}
}

// TestRandomOperations compares the results of random JSON patches with the library's.
func TestRandomOperations(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	pick := func(from ...string) string { return from[random.Intn(len(from))] }
	path := func() string {
		path := ""
		for range 1 + random.Intn(3) {
			path += "/" + pick("a", "b", "l", "0", "1", "-1", "-", "n", "s", "c", "x~1y", "", "3", "o", "p", "d", "k")
		}
		return path
	}
	for range 3000 {
		var operations []string
		for range 1 + random.Intn(8) {
			operations = append(operations, fmt.Sprintf(`{"op":%q,"path":%q,"from":%q,"value":%s}`,
				pick("add", "add", "add", "remove", "replace", "move", "copy", "test"), path(), path(),
				pick(`1`, `null`, `{}`, `[]`, `{"a":[1,null,{"b":2}]}`, `["x","y"]`, `"a\"]}b"`, `{ "c" : "d" }`, `{"k":2}`)))
		}
		// Most random patches fail at some operation: the prefixes before it do not.
		for i := range operations {
			compareApply(t, document, "["+strings.Join(operations[:i+1], ",")+"]")
		}
	}
}

// FuzzApply compares the result of a JSON patch with the library's.
func FuzzApply(f *testing.F) {
	for _, patch := range examples {
		f.Add(document, patch)
	}
	f.Fuzz(func(t *testing.T, document, patch string) {
		var members map[string]any
		if json.Unmarshal([]byte(document), &members) != nil || members == nil || document[0] != '{' {
			t.Skip("the server's documents are objects")
		}
		compareApply(t, document, patch)
	})
}

// mergeExamples are merge patches of document.
var mergeExamples = []string{
	``, `1`, `null`, `"a"`, `[1,null,{"a":null}]`, `{}`, ` {"a":null} `, `{"a":1}`,
	`{"a":{"b":null,"c":{"d":null,"e":[{"f":null}]}}}`, `{"a":{"b":{"x":null,"y":1}}}`, `{"a":[{"x":null}]}`,
	`{"n":{"x":null}}`, `{"n":null}`, `{"s":[{"x":null},null]}`, `{"d":{}}`, `{"d":{"z":1}}`,
	`{"e":{"a":1,"a":null}}`, `{"o":{"p":"<\ud800"}}`, `{"x":`, `{} x`, `{"a":{"x/y":{"~":false}}}`,
	`{"l":null,"new":{"a":1.50,"b":[1 , 2]}}`,
}

func compareMerge(t *testing.T, document, patch string) {
	t.Helper()
	got, err := Merge([]byte(document), []byte(patch))
	if errors.Is(err, ErrTooMuchWork) {
		return
	}
	want, wantErr := library.MergePatch([]byte(document), []byte(patch))
	sameResult(t, patch, got, want, err, wantErr)
}

// TestMerge compares the results of merge patches with the library's.
func TestMerge(t *testing.T) {
	for _, patch := range mergeExamples {
		compareMerge(t, document, patch)
	}
}

// FuzzMerge compares the result of a merge patch with the library's.
func FuzzMerge(f *testing.F) {
	for _, patch := range mergeExamples {
		f.Add(document, patch)
	}
	f.Fuzz(func(t *testing.T, document, patch string) {
		var members map[string]any
		if json.Unmarshal([]byte(document), &members) != nil || members == nil || document[0] != '{' {
			t.Skip("the server's documents are objects")
		}
		compareMerge(t, document, patch)
	})
}

// nested returns a value inside so many objects.
func nested(levels int, value string) string {
	return strings.Repeat(`{"a":`, levels) + value + strings.Repeat("}", levels)
}

// TestWorkIsBounded applies patches for which the library needs minutes of CPU.
func TestWorkIsBounded(t *testing.T) {
	zeros := `{"op":"add","path":"/x","value":[` + strings.Repeat("0,", 1_000_000) + `0]}`
	text := `"` + strings.Repeat("x", 2_000_000) + `"`
	repeat := func(first, operation string, times int) string {
		return "[" + first + strings.Repeat(","+operation, times) + "]"
	}
	lists := "[" + strings.Repeat("[],", 600_000) + "[]]"
	deep := `{"op":"add","path":"/x","value":` + nested(4000, text) + `}`
	wrap := `{"op":"add","path":"/y","value":{}},{"op":"move","from":"/x","path":"/y/a"},{"op":"move","from":"/y","path":"/x"}`
	for name, test := range map[string]struct {
		patch string
		want  error
	}{
		"insertions at the head": {repeat(zeros, `{"op":"add","path":"/x/0","value":0}`, 9_000), ErrTooMuchWork},
		"removals at the head":   {repeat(zeros, `{"op":"remove","path":"/x/0"}`, 9_000), ErrTooMuchWork},
		"moves to the head":      {repeat(zeros, `{"op":"move","from":"/x/-1","path":"/x/0"}`, 9_000), ErrTooMuchWork},
		"a list from nothing": {
			repeat(`{"op":"add","path":"/x","value":[]}`, `{"op":"add","path":"/x/0","value":0}`, 9_999), nil,
		},
		"a path into deep values": {
			repeat(deep, `{"op":"test","path":"/x`+strings.Repeat("/a", 4000)+`","value":1}`, 1), ErrTooMuchWork,
		},
		"a test of deep values": {repeat(deep, `{"op":"test","path":"/x","value":{"a":{}}}`, 1), library.ErrTestFailed},
		"a test of short lists": {
			`[{"op":"add","path":"/x","value":` + lists + `},{"op":"test","path":"/x","value":` + lists + `}]`, ErrTooMuchWork,
		},
		"values moved into others": {repeat(`{"op":"add","path":"/x","value":{"a":`+text+`}}`, wrap, 3_000), nil},
		"copies of copies": {repeat(`{"op":"add","path":"/x","value":["`+strings.Repeat("x", 1000)+`"]}`,
			`{"op":"copy","from":"/x","path":"/x/-"}`, 30), &library.AccumulatedCopySizeError{}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := apply(`{}`, test.patch)
			if !errors.Is(err, test.want) && (err == nil || reflect.TypeOf(err) != reflect.TypeOf(test.want)) {
				t.Errorf("%.200v, want %v", err, test.want)
			}
			if took := time.Since(began); took > soon {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestDepthIsBounded moves values into others until they are nested deeper than encoding/json permits.
func TestDepthIsBounded(t *testing.T) {
	const levels = 100
	path := "/t" + strings.Repeat("/a", levels)
	wrap := `,{"op":"add","path":"/t","value":` + nested(levels, "{}") + `},{"op":"move","from":"/x","path":"` +
		path + `/a"},` +
		`{"op":"move","from":"/t","path":"/x"}`
	for name, test := range map[string]struct {
		wraps int
		then  string
		want  error
	}{
		"encoded, permitted": {98, "", nil},
		"encoded":            {1000, "", ErrTooMuchWork},
		"copied":             {1000, `,{"op":"copy","from":"/x","path":"/y"},{"op":"remove","path":"/x"}`, ErrTooMuchWork},
		"compared":           {1000, `,{"op":"test","path":"/x","value":` + nested(3000, "1") + `}`, library.ErrTestFailed},
		"removed":            {1000, `,{"op":"remove","path":"/x"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := apply(`{}`, `[{"op":"add","path":"/x","value":{}}`+strings.Repeat(wrap, test.wraps)+test.then+`]`)
			if !errors.Is(err, test.want) {
				t.Errorf("%.200v, want %v", err, test.want)
			}
		})
	}
}

// soon is the time in which a patch must be applied on a busy machine.
const soon = 20 * time.Second

// TestMergeIsBounded merges a patch whose levels the library parses and encodes one after another.
func TestMergeIsBounded(t *testing.T) {
	text := `"` + strings.Repeat("x", 2_000_000) + `"`
	began := time.Now()
	if _, err := Merge([]byte(`{}`), []byte(nested(4000, text))); !errors.Is(err, ErrTooMuchWork) {
		t.Errorf("4,000 levels: %.200v", err)
	}
	if _, err := Merge([]byte(`{}`), []byte(nested(50, text))); err != nil {
		t.Errorf("50 levels: %v", err)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("took %v", took)
	}
}
