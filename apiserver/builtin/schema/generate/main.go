// Command generate writes schema.gob.gz, and unstable.gob.gz with the types that only alpha and beta versions use, from
// the OpenAPI documents in the module k8s.io/kubernetes. The output is reproducible.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	merge "sigs.k8s.io/structured-merge-diff/v6/schema"

	"quorate.dev/apiserver/openapi/reduction"
)

func main() {
	if err := run("schema.gob.gz", "unstable.gob.gz"); err != nil {
		log.Fatal(err)
	}
}

func run(output, unstable string) error {
	directory, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("find the module k8s.io/kubernetes: %w", err)
	}
	documents := filepath.Join(strings.TrimSpace(string(directory)), "api/openapi-spec/v3")
	stable, err := readSchema(documents, false)
	if err != nil {
		return err
	}
	all, err := readSchema(documents, true)
	if err != nil {
		return err
	}
	all.Types = slices.DeleteFunc(all.Types, func(t merge.TypeDef) bool {
		return slices.ContainsFunc(stable.Types, func(known merge.TypeDef) bool { return known.Name == t.Name })
	})
	if err := write(stable, output); err != nil {
		return err
	}
	return write(all, unstable)
}

// readSchema returns the schema of all stable versions, or of all versions.
func readSchema(directory string, unstable bool) (*merge.Schema, error) {
	models, err := readModels(directory, unstable)
	if err != nil {
		return nil, err
	}
	schema, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	if err != nil {
		return nil, fmt.Errorf("convert the models: %w", err)
	}
	for i := range schema.Types {
		normalize(&schema.Types[i].Atom)
	}
	slices.SortFunc(schema.Types, func(a, b merge.TypeDef) int { return strings.Compare(a.Name, b.Name) })
	return schema, nil
}

func write(schema *merge.Schema, output string) error {
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(writer).Encode(schema); err != nil {
		return fmt.Errorf("encode the schema: %w", err)
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return os.WriteFile(output, compressed.Bytes(), 0o644)
}

// readModels returns the models of all stable versions, or of all versions, including those that are served only if an
// older Kubernetes version is emulated.
func readModels(directory string, unstable bool) (map[string]*spec.Schema, error) {
	documents, err := readDocuments(directory, unstable)
	if err != nil {
		return nil, err
	}
	if unstable {
		if err := reduction.AddRemovedV3(documents); err != nil {
			return nil, fmt.Errorf("add removed versions: %w", err)
		}
	}
	models := map[string]*spec.Schema{}
	for path, document := range documents {
		content, err := json.Marshal(document)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", path, err)
		}
		parsed := &spec3.OpenAPI{}
		if err := parsed.UnmarshalJSON(content); err != nil {
			return nil, fmt.Errorf("decode %s: %w", path, err)
		}
		if parsed.Components == nil {
			continue
		}
		maps.Copy(models, parsed.Components.Schemas)
	}
	if len(models) == 0 {
		return nil, fmt.Errorf("no models in %s", directory)
	}
	return models, nil
}

// readDocuments returns the documents of all stable versions, or of all versions, by path.
func readDocuments(directory string, unstable bool) (map[string]reduction.Object, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*_openapi.json"))
	if err != nil {
		return nil, err
	}
	documents := map[string]reduction.Object{}
	for _, file := range files {
		if !unstable && (strings.Contains(file, "alpha") || strings.Contains(file, "beta")) {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var document reduction.Object
		if err := json.Unmarshal(content, &document); err != nil {
			return nil, fmt.Errorf("decode %s: %w", file, err)
		}
		path := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), "_openapi.json"), "__", "/")
		documents[path] = document
	}
	return documents, nil
}

// normalize sorts fields and drops defaults that are not scalar, because merging needs only the defaults of list keys.
func normalize(atom *merge.Atom) {
	if atom.List != nil {
		normalize(&atom.List.ElementType.Inlined)
	}
	if atom.Map == nil {
		return
	}
	normalize(&atom.Map.ElementType.Inlined)
	slices.SortFunc(atom.Map.Fields, func(a, b merge.StructField) int { return strings.Compare(a.Name, b.Name) })
	for i := range atom.Map.Fields {
		field := &atom.Map.Fields[i]
		switch field.Default.(type) {
		case string, bool, int64, float64:
		default:
			field.Default = nil
		}
		normalize(&field.Type.Inlined)
	}
}
