package reduction

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// removedVersion is an API version that kube-apiserver serves only if it emulates an older Kubernetes version.
// Upstream's documents do not have it, but a version of the same resources with the same fields.
type removedVersion struct {
	group, version string
	// like is the version in upstream's documents.
	like      string
	resources []string
}

// removedVersions are the versions that the oldest Kubernetes version that can be emulated serves and the current
// version does not.
var removedVersions = []removedVersion{
	{"certificates.k8s.io", "v1alpha1", "v1beta1", []string{"clustertrustbundles"}},
	{"networking.k8s.io", "v1beta1", "v1", []string{"ipaddresses", "servicecidrs"}},
	{"storage.k8s.io", "v1beta1", "v1", []string{"volumeattributesclasses"}},
}

// AddRemovedV3 adds the documents of removed versions to version 3 documents by path.
func AddRemovedV3(documents map[string]Object) error {
	for _, v := range removedVersions {
		source, ok := documents["apis/"+v.group+"/"+v.like]
		if !ok {
			continue
		}
		document, _ := v.rename(source).(Object)
		if err := V3(document, v.serves); err != nil {
			return err
		}
		documents["apis/"+v.group+"/"+v.version] = document
	}
	return nil
}

// AddRemovedV2 adds the paths and definitions of removed versions to a version 2 document.
func AddRemovedV2(swagger Object) error {
	for _, v := range removedVersions {
		renamed, _ := v.rename(swagger).(Object)
		if err := V2(renamed, v.serves); err != nil {
			return err
		}
		for member, prefix := range map[string]string{"paths": v.path(v.version), "definitions": v.types(v.version)} {
			own, _ := renamed[member].(Object)
			maps.DeleteFunc(own, func(name string, _ any) bool { return !strings.HasPrefix(name, prefix) })
			all, _ := swagger[member].(Object)
			maps.Copy(all, own)
		}
	}
	return nil
}

func (v removedVersion) serves(resource string) bool {
	plural, ok := strings.CutPrefix(resource, v.group+"/"+v.version+"/")
	return ok && slices.Contains(v.resources, plural)
}

// path returns the prefix of the paths of a version.
func (v removedVersion) path(version string) string { return "/apis/" + v.group + "/" + version + "/" }

// types returns the prefix of the names of the types of a version.
func (v removedVersion) types(version string) string {
	return "io.k8s.api." + v.name() + "." + version + "."
}

// name returns the name of the group in Go.
func (v removedVersion) name() string {
	name, _, _ := strings.Cut(v.group, ".")
	return name
}

// operation returns the group and a version in the ID of an operation.
func (v removedVersion) operation(version string) string { return title(v.name()) + title(version) }

func title(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// rename returns a copy of a value in which the removed version replaces the version in upstream's documents.
func (v removedVersion) rename(value any) any {
	replacer := strings.NewReplacer(v.path(v.like), v.path(v.version), v.types(v.like), v.types(v.version))
	operation := regexp.MustCompile(v.operation(v.like) + `([A-Z]|$)`)
	tag := v.name() + "_" + v.like
	text := func(s string) string {
		if s == tag {
			return v.name() + "_" + v.version
		}
		return operation.ReplaceAllString(replacer.Replace(s), v.operation(v.version)+"${1}")
	}
	var copied func(any) any
	copied = func(value any) any {
		switch value := value.(type) {
		case Object:
			result := make(Object, len(value))
			for key, child := range value {
				result[text(key)] = copied(child)
			}
			if result["group"] == v.group && result["version"] == v.like {
				result["version"] = v.version
			}
			return result
		case []any:
			result := make([]any, len(value))
			for i, child := range value {
				result[i] = copied(child)
			}
			return result
		case string:
			return text(value)
		}
		return value
	}
	return copied(value)
}
