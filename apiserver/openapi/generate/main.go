// Command generate writes the OpenAPI documents of the built-in kinds to one compressed archive, as JSON and
// protobuf. It derives them from the documents in the Kubernetes module: it adds enum values and API versions that are
// served only if an older Kubernetes version is emulated, and reduces version 2 to the resources that are served by
// default. Package openapi compares the result with upstream's documents.
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"

	"quorate.dev/apiserver/openapi/reduction"
)

// object is a JSON object.
type object = reduction.Object

func main() {
	log.SetFlags(0)
	output := flag.String("output", "", "the archive to write; default: builtin.zip of the openapi package")
	flag.Parse()
	if err := run(*output); err != nil {
		log.Fatal(err)
	}
}

func run(output string) error {
	source, err := directory("k8s.io/kubernetes")
	if err != nil {
		return err
	}
	if output == "" {
		root, err := directory("quorate.dev")
		if err != nil {
			return err
		}
		output = filepath.Join(root, "apiserver", "openapi", "builtin.zip")
	}
	content, err := archive(filepath.Join(source, "api", "openapi-spec"), minor(source))
	if err != nil {
		return err
	}
	return os.WriteFile(output, content, 0o644)
}

// directory returns the directory of a module.
func directory(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

var versionInPath = regexp.MustCompile(`@v(\d+\.\d+)\.`)

// minor returns the minor version, such as "1.36", of the module's directory.
func minor(directory string) string {
	if match := versionInPath.FindStringSubmatch(directory); match != nil {
		return match[1]
	}
	return "unversioned"
}

// index is the index of the archive.
type index struct {
	// V2 is the entity tag of the default version 2 document.
	V2 string `json:"v2"`
	// Places has the insertion points in the default version 2 document.
	Places reduction.Places `json:"places"`
	// V3 has the entity tags of the version 3 documents by path.
	V3 map[string]string `json:"v3"`
	// Resources has the resources of the version 3 documents by path, as group/version/plural.
	Resources map[string][]string `json:"resources"`
}

func archive(source, minor string) ([]byte, error) {
	files, enumerations := map[string][]byte{}, enumerations()
	contents := index{V3: map[string]string{}, Resources: map[string][]string{}}
	documents, err := readV3(filepath.Join(source, "v3"), minor)
	if err != nil {
		return nil, err
	}
	if err := reduction.AddRemovedV3(documents); err != nil {
		return nil, err
	}
	for path, document := range documents {
		addEnumerations(at(at(document, "components"), "schemas"), enumerations)
		if err := addV3(files, contents.V3, path, document); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		contents.Resources[path] = reduction.Resources(at(document, "paths"))
	}
	swagger, err := readV2(filepath.Join(source, "swagger.json"), minor)
	if err != nil {
		return nil, err
	}
	if err := reduction.AddRemovedV2(swagger); err != nil {
		return nil, err
	}
	addEnumerations(at(swagger, "definitions"), enumerations)
	if files["v2all.json"], err = json.Marshal(swagger); err != nil {
		return nil, fmt.Errorf("encode swagger: %w", err)
	}
	if err := reduction.V2(swagger, stable); err != nil {
		return nil, err
	}
	if err := addV2(files, &contents, "v2", swagger); err != nil {
		return nil, err
	}
	template, err := makeTemplate(swagger, documents)
	if err != nil {
		return nil, err
	}
	// The reduction to the resources of extension servers must be the last step, because it removes parts of swagger
	// that the steps above need.
	if err := reduction.V2(swagger, ofExtensions); err != nil {
		return nil, err
	}
	further := map[string]any{"template.json": template, "index.json": contents, "v2extension.json": swagger}
	for name, value := range further {
		if files[name], err = json.Marshal(value); err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
	}
	return compress(files)
}

func compress(files map[string][]byte) ([]byte, error) {
	var buffer bytes.Buffer
	writer := zip.NewWriter(&buffer)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entry, err := writer.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate}) // no time: reproducible
		if err != nil {
			return nil, fmt.Errorf("compress %s: %w", name, err)
		}
		if _, err := entry.Write(files[name]); err != nil {
			return nil, fmt.Errorf("compress %s: %w", name, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("finish archive: %w", err)
	}
	return buffer.Bytes(), nil
}

func tag(content []byte) string { return fmt.Sprintf("%X", sha512.Sum512(content)) }

func addV3(files map[string][]byte, tags map[string]string, path string, document object) error {
	encoded, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	parsed, err := openapiv3.ParseDocument(encoded)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	binary, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return fmt.Errorf("encode as protobuf: %w", err)
	}
	files["v3/"+path+".json"], files["v3/"+path+".pb"] = encoded, binary
	tags[path] = tag(encoded)
	return nil
}

// addV2 adds a version 2 document to the files, and records its entity tag and insertion points.
func addV2(files map[string][]byte, contents *index, name string, swagger object) error {
	encoded, at, err := reduction.EncodeV2(swagger)
	if err != nil {
		return err
	}
	parsed, err := openapiv2.ParseDocument(encoded)
	if err != nil {
		return fmt.Errorf("parse swagger: %w", err)
	}
	binary, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return fmt.Errorf("encode swagger as protobuf: %w", err)
	}
	files[name+".json"], files[name+".pb"] = encoded, binary
	contents.V2, contents.Places = tag(encoded), at
	return nil
}

var (
	unstable     = regexp.MustCompile(`/v\d+(alpha|beta)\d+(/|$)`)
	errNotObject = errors.New("not a JSON object")
)

func readJSON(path string) (object, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var document object
	if err := json.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return document, nil
}
