// Package manifest reads the objects of the manifests, which are rendered from config/, and writes generated
// directories. The generators of the OLM bundle and of the Helm chart use it, so that all ways to install Quorate have
// the same objects.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Object is an object of any kind.
type Object = *unstructured.Unstructured

// Read returns the objects of a YAML file in their order.
func Read(file string) ([]Object, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// ReadAll returns the objects of several files in the order of the files.
func ReadAll(files ...string) ([]Object, error) {
	var all []Object
	for _, file := range files {
		objects, err := Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// Find returns the object with a kind and a name, and an error if there is none.
func Find(objects []Object, kind, name string) (Object, error) {
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object, nil
		}
	}
	return nil, fmt.Errorf("the manifests have no %s %s", kind, name)
}

// OfKind returns the objects of a kind.
func OfKind(objects []Object, kind string) []Object {
	var found []Object
	for _, object := range objects {
		if object.GetKind() == kind {
			found = append(found, object)
		}
	}
	return found
}

// Version returns the version of Quorate, from the file VERSION of the repository at root.
func Version(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "VERSION"))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}

// kubernetesRequirement is the line of go.mod with the Kubernetes version.
var kubernetesRequirement = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes v(\S+)$`)

// Kubernetes returns the version of Kubernetes that API servers implement, such as 1.37.2, from the go.mod of the
// repository at root.
func Kubernetes(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	found := kubernetesRequirement.FindSubmatch(text)
	if found == nil {
		return "", errors.New("go.mod does not require k8s.io/kubernetes")
	}
	return string(found[1]), nil
}

// Tag returns the tag of a version's commit and image without the prefix v, such as 0.1.0-k8s1.37.2. It names the
// version of Kubernetes, too. build.sh computes the same tag, with the prefix.
func Tag(root, version string) (string, error) {
	kubernetes, err := Kubernetes(root)
	if err != nil {
		return "", err
	}
	return version + "-k8s" + kubernetes, nil
}

// Directory is the content of a generated directory: the contents of files by path.
type Directory map[string][]byte

// Add encodes an object or another value as YAML and adds it as the file name.
func (d Directory) Add(name string, value any) error {
	text, err := Encode(value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d[name] = text
	return nil
}

// Encode returns an object or another value as YAML with sorted keys.
func Encode(value any) ([]byte, error) {
	if object, ok := value.(Object); ok {
		value = object.Object
	}
	return yaml.Marshal(value)
}

// Write replaces the directory at path and its content by the files of d.
func (d Directory) Write(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	for name, text := range d {
		file := filepath.Join(path, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // public files
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // public files
			return err
		}
	}
	return nil
}
