package compatibility

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

func TestOneEtcd(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	both := startServers(t)
	both.kubernetes.create(t, "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	all := append(kinds(),
		both.define(t, both.kubernetes, "widgets", "Widget"),
		both.define(t, both.quorate, "gadgets", "Gadget"),
	)
	for _, k := range all {
		t.Run("life/"+k.name, func(t *testing.T) {
			life(t, k, both.quorate, both.kubernetes)
			life(t, k, both.kubernetes, both.quorate)
		})
		t.Run("bytes/"+k.name, func(t *testing.T) { both.storeTheSame(t, k) })
	}
}

// define creates a CustomResourceDefinition through one server, and checks that both servers then serve it with equal
// objects.
func (both *servers) define(t *testing.T, writer *server, plural, kindName string) kind {
	t.Helper()
	writer.create(t, definitions, definition(plural, kindName))
	k := custom(plural, kindName)
	both.kubernetes.awaitServed(t, k.collection)
	both.quorate.awaitServed(t, k.collection)
	path := definitions + "/" + plural + ".example.com"
	var difference string
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		// Either server may still write conditions, so that two reads may return different states.
		difference = cmp.Diff(both.kubernetes.get(t, path), both.quorate.get(t, path))
		return difference == "", nil
	})
	if err != nil {
		t.Errorf("definition of %s, kube-apiserver (-) and quorate (+):\n%s", plural, difference)
	}
	return k
}

// life creates an object through one server, and changes and deletes it through the other, while both are watched.
func life(t *testing.T, k kind, writer, other *server) {
	t.Helper()
	name := "written-by-" + writer.name
	path := k.path(name)
	next, nextOfWriter := other.watch(t, k.collection, name), writer.watch(t, k.collection, name)

	created := writer.create(t, k.collection, k.named(name))
	mustEqual(t, "GET through "+other.name, created, other.get(t, path))
	mustEqual(t, "GET through "+writer.name, created, writer.get(t, path))
	patched := other.patch(t, path, `{"metadata":{"labels":{"changed":"yes"}}}`)
	mustEqual(t, "GET after a change through "+writer.name, patched, writer.get(t, path))
	mustEqual(t, "GET after a change through "+other.name, patched, other.get(t, path))
	again := writer.patch(t, path, `{"metadata":{"labels":{"changed":"again"}}}`)
	mustEqual(t, "GET after the second change", again, other.get(t, path))
	other.delete(t, path)
	other.mustBeGone(t, path)
	writer.mustBeGone(t, path)

	seen := untilDeleted(next)
	mustEqual(t, "what both watches show", untilDeleted(nextOfWriter), seen)
	mustEqual(t, "the first events", []event{{"ADDED", created}, {"MODIFIED", patched}, {"MODIFIED", again}},
		seen[:min(3, len(seen))])
}

// untilDeleted reads events until the deletion. The deletion of a pod begins with a modification.
func untilDeleted(next func() event) (seen []event) {
	for {
		e := next()
		seen = append(seen, e)
		if e.Type == "DELETED" {
			return seen
		}
	}
}

func mustEqual[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("%s (-want +got):\n%s", what, difference)
	}
}

func metadata(o object) map[string]any { return o["metadata"].(map[string]any) }

// storeTheSame creates an object through one server and then through the other, and compares the values in etcd.
func (both *servers) storeTheSame(t *testing.T, k kind) {
	t.Helper()
	const name = "same"
	var stored [2][]byte
	for i, writer := range []*server{both.kubernetes, both.quorate} {
		created := writer.create(t, k.collection, k.named(name))
		response, err := both.etcd.Get(t.Context(), k.key(name))
		if err != nil {
			t.Fatal(err)
		}
		if len(response.Kvs) != 1 {
			t.Fatalf("%s stored nothing under %s", writer.name, k.key(name))
		}
		stored[i] = neutral(t, response.Kvs[0].Value, created)
		writer.delete(t, k.path(name))
	}
	if !bytes.Equal(stored[0], stored[1]) {
		t.Errorf("%s: stored by kube-apiserver, then by quorate:\n%q\n%q", k.name, stored[0], stored[1])
	}
}

// neutral replaces the UID and the times of creation, which differ, by constants of the same length. It does not decode
// the value, so that the order and the encoding of fields are also compared.
func neutral(t *testing.T, stored []byte, created object) []byte {
	t.Helper()
	uid := metadata(created)["uid"].(string)
	stored = bytes.ReplaceAll(stored, []byte(uid), []byte(strings.Repeat("u", len(uid))))
	for _, moment := range times(created) {
		stored = bytes.ReplaceAll(stored, []byte(moment), []byte(strings.Repeat("t", len(moment))))
		parsed, err := time.Parse(time.RFC3339, moment)
		if err != nil {
			t.Fatal(err)
		}
		seconds := binary.AppendUvarint(nil, uint64(parsed.Unix())) // of a protobuf Timestamp
		stored = bytes.ReplaceAll(stored, seconds, bytes.Repeat([]byte("t"), len(seconds)))
	}
	return stored
}

// times matches the times that a server sets.
func times(created object) []string {
	all := []string{metadata(created)["creationTimestamp"].(string)}
	managers, _ := metadata(created)["managedFields"].([]any)
	for _, manager := range managers {
		if moment, ok := manager.(map[string]any)["time"].(string); ok {
			all = append(all, moment)
		}
	}
	return all
}

func TestNeutralKeepsEverythingElse(t *testing.T) {
	created := object{"metadata": map[string]any{"uid": "abc", "creationTimestamp": "2026-01-02T03:04:05Z"}}
	stored := append([]byte(`{"uid":"abc","at":"2026-01-02T03:04:05Z","x":1}`), 0x08)
	stored = append(binary.AppendUvarint(stored, 1767323045), 0x10)
	want := `{"uid":"uuu","at":"tttttttttttttttttttt","x":1}` + "\x08ttttt\x10"
	if got := string(neutral(t, stored, created)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
