package desired

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/encryption"
)

// builtInResources returns the resources of the groups that client-go knows, by group. It guesses the resource of a
// kind as its plural.
var builtInResources = sync.OnceValue(func() map[string][]string {
	resources := map[string][]string{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		if strings.HasSuffix(kind.Kind, "List") || strings.HasSuffix(kind.Kind, "Options") || kind.Version == "__internal" {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		resources[kind.Group] = append(resources[kind.Group], plural.Resource)
	}
	return resources
})

// validateEncryption returns the errors in spec.encryption.resources. A misspelled resource would leave the objects of
// the intended resource unencrypted; if it replaced a correct entry, the stored objects of that entry would be
// decrypted.
func validateEncryption(cluster *v1alpha1.ApiServerCluster) error {
	if cluster.Spec.Encryption == nil {
		return nil
	}
	var errs []error
	for _, entry := range cluster.Spec.Encryption.Resources {
		if err := checkEncryptedResource(entry); err != nil {
			errs = append(errs, fmt.Errorf("spec.encryption.resources: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkEncryptedResource returns an error unless an entry is a wildcard, a resource of a built-in group, or possibly a
// custom resource, whose group contains a dot.
func checkEncryptedResource(entry string) error {
	if entry == "*.*" {
		return nil
	}
	resource, group, _ := strings.Cut(entry, ".")
	resources, builtIn := builtInResources()[group]
	switch {
	case strings.ToLower(entry) != entry || entry == "*":
		return nil // the API server's own validation has a message for it
	case builtIn && (resource == "*" || slices.Contains(resources, resource)):
		return nil
	case builtIn:
		return fmt.Errorf("%s has no resource %q; write custom resources with their group, such as widgets.example.com",
			cmp.Or(group, "the core API group"), resource)
	case !strings.Contains(group, "."):
		return fmt.Errorf("%q is neither a built-in API group nor the group of a custom resource", group)
	}
	return nil
}

// Undecryptable returns the entries of the scheme in use that the spec no longer encrypts and that the annotation
// DecryptAnnotation does not name. Their objects must stay encrypted.
func Undecryptable(cluster *v1alpha1.ApiServerCluster, current encryption.Scheme) []string {
	confirmed := strings.FieldsFunc(cluster.Annotations[v1alpha1.DecryptAnnotation], func(r rune) bool {
		return r == ',' || r == ' '
	})
	return slices.DeleteFunc(current.Uncovered(EncryptionScheme(cluster)), func(entry string) bool {
		return slices.Contains(confirmed, entry)
	})
}
