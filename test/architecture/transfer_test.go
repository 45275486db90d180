package architecture

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// transferParts maps the files of the server that have a part in transfers of objects between clusters to their part.
// The only one in the path of requests is the guard, which extension.go puts in front of the handler of resources.
var transferParts = map[string]string{
	"apiserver/transfer/transfer.go": "the guard: serves or rejects requests for objects that are being moved",
	"apiserver/extension.go":         "composes the guard, for extension servers only",
	"apiserver/registry/transfer.go": "stores and deletes objects for the guard",
	"apiserver/crd/definition.go":    "reads the annotation of the CustomResourceDefinition",
	"apiserver/resource/resource.go": "declares the field of the definition",
}

// transfers matches the uses of the definition's field, of the registry's functions for the guard, and of the guard.
var transfers = regexp.MustCompile(`\bTransferring\b|\.Expunge\(|egistry\.Import\(|"quorate\.dev/apiserver/transfer"`)

// TestTransfersInOnePlace fails if a part of the server other than transferParts handles transfers.
func TestTransfersInOnePlace(t *testing.T) {
	found := map[string]bool{}
	for _, file := range sourceFiles(t) {
		name := strings.TrimPrefix(file, "../../")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(name, "apiserver/") || !transfers.Match(text) {
			continue
		}
		found[name] = true
		if transferParts[name] == "" {
			t.Errorf("%s handles transfers: only the guard in apiserver/transfer should", name)
		}
	}
	for name := range transferParts {
		if !found[name] {
			t.Errorf("%s is in transferParts, but has no part in transfers", name)
		}
	}
}
