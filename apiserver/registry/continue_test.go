package registry

import (
	"strings"
	"testing"

	upstream "k8s.io/apiserver/pkg/storage"
)

func TestContinueIsUpstreams(t *testing.T) {
	ours, err := encodeContinue("pods/a/x"+firstKeyAfter, "pods/a/", "/", 7)
	if err != nil {
		t.Fatal(err)
	}
	// kube-apiserver's cache removes the prefix without its trailing slash.
	theirs, err := upstream.EncodeContinue("/pods/a/x\u0000", "/pods/a", 7)
	if err != nil {
		t.Fatal(err)
	}
	if ours != theirs {
		t.Errorf("got %s, want %s", ours, theirs)
	}
	key, revision, err := decodeContinue(theirs, "pods/a/")
	if err != nil || key != "pods/a/x"+firstKeyAfter || revision != 7 {
		t.Errorf("got %q at %d: %v", key, revision, err)
	}
	if _, err := encodeContinue("secrets/a/x", "pods/a/", "/", 7); err == nil {
		t.Error("encoded a key outside the collection")
	}
}

// FuzzDecodeContinue compares with upstream. No token may point outside its collection.
func FuzzDecodeContinue(f *testing.F) {
	for _, token := range []string{
		"", "!", "nonsense",
		"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0",
		"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4vc2VjcmV0cy9hXHUwMDAwIn0",
		"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MX0", "eyJ2IjoibWV0YS5rOHMuaW8vdjIiLCJydiI6MX0",
		"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTYsInN0YXJ0Ijoi0000In0",
	} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		const collection = "pods/a/"
		key, revision, err := decodeContinue(token, collection)
		wantKey, wantRevision, wantErr := upstream.DecodeContinue(token, collection)
		if wantRevision < 0 {
			wantRevision = -1 // every negative revision means the same
		}
		if (err == nil) != (wantErr == nil) || key != wantKey || revision != wantRevision {
			t.Fatalf("got %q, %d, %v; want %q, %d, %v", key, revision, err, wantKey, wantRevision, wantErr)
		}
		if err == nil && (!strings.HasPrefix(key, collection) || strings.Contains(key, "/../")) {
			t.Fatalf("points to %q", key)
		}
	})
}
