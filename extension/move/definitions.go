package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/crd"
)

// accessVersion is a version that a move adds to the CustomResourceDefinitions of the host. In this version, the move
// accesses the objects in the host's etcd even while the extension server serves all other versions. Conversion to
// accessVersion changes only apiVersion.
const accessVersion = "quoratetransfer"

var definitions = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// definitionsOf returns the CustomResourceDefinitions of a group.
func (c *cluster) definitionsOf(ctx context.Context, group string) ([]unstructured.Unstructured, error) {
	list, err := c.objects.Resource(definitions).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list CustomResourceDefinitions of the %s: %w", c.name, err)
	}
	found := slices.DeleteFunc(list.Items, func(one unstructured.Unstructured) bool {
		of, _, _ := unstructured.NestedString(one.Object, "spec", "group")
		return of != group
	})
	return found, nil
}

// versionsOf returns the versions in the spec of a definition. The result shares memory with the definition.
func versionsOf(definition *unstructured.Unstructured) []map[string]any {
	list, _, _ := unstructured.NestedFieldNoCopy(definition.Object, "spec", "versions")
	items, _ := list.([]any)
	var versions []map[string]any
	for _, item := range items {
		if version, ok := item.(map[string]any); ok {
			versions = append(versions, version)
		}
	}
	return versions
}

// resourceOf returns the properties of a definition that a move needs. The move reads objects in the storage version if
// it is served, else in the first served version.
func resourceOf(definition *unstructured.Unstructured) (resource, error) {
	r := resource{}
	r.Group, _, _ = unstructured.NestedString(definition.Object, "spec", "group")
	r.Plural, _, _ = unstructured.NestedString(definition.Object, "spec", "names", "plural")
	scope, _, _ := unstructured.NestedString(definition.Object, "spec", "scope")
	r.Namespaced = scope == "Namespaced"
	for _, version := range versionsOf(definition) {
		name, _ := version["name"].(string)
		if name == accessVersion || version["served"] != true {
			continue
		}
		r.Served = append(r.Served, name)
		if r.Version == "" || version["storage"] == true {
			r.Version = name
		}
	}
	if r.Version == "" {
		return r, fmt.Errorf("CustomResourceDefinition %s serves no version", definition.GetName())
	}
	return r, nil
}

// copyOfDefinition returns a new definition with the spec, labels and annotations of another, without the transfer
// annotation.
func copyOfDefinition(definition *unstructured.Unstructured) *unstructured.Unstructured {
	made := &unstructured.Unstructured{Object: map[string]any{"spec": definition.DeepCopy().Object["spec"]}}
	made.SetGroupVersionKind(definitions.GroupVersion().WithKind("CustomResourceDefinition"))
	made.SetName(definition.GetName())
	made.SetLabels(definition.GetLabels())
	annotations := maps.Clone(definition.GetAnnotations())
	delete(annotations, crd.TransferAnnotation)
	made.SetAnnotations(annotations)
	return made
}

// withAccess returns a copy of a definition's spec with accessVersion and without conversion by a webhook. Unless
// storage is empty, objects are stored in that version.
func withAccess(spec map[string]any, storage string) map[string]any {
	wrapper := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	spec, _ = wrapper.DeepCopy().Object["spec"].(map[string]any)
	versions := []any{}
	for _, version := range versionsOf(&unstructured.Unstructured{Object: map[string]any{"spec": spec}}) {
		if version["name"] == accessVersion {
			continue
		}
		if storage != "" {
			version["storage"] = version["name"] == storage
		}
		versions = append(versions, version)
	}
	spec["versions"] = append(versions, map[string]any{
		"name": accessVersion, "served": true, "storage": false,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "x-kubernetes-preserve-unknown-fields": true,
		}},
	})
	spec["conversion"] = map[string]any{"strategy": "None"}
	return spec
}

// createDefinitions creates the definitions in the extension server, with the transfer annotation. It adopts an
// existing definition without the annotation if its spec is equal and it has no objects.
func (m *Mover) createDefinitions(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		source, err := m.host.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the host's definition: %w", err)
		}
		current, err := m.extension.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			made := copyOfDefinition(source)
			made.SetAnnotations(with(made.GetAnnotations(), crd.TransferAnnotation, string(s.Direction)))
			_, err = m.extension.objects.Resource(definitions).Create(ctx, made, metav1.CreateOptions{FieldManager: manager})
		case err == nil && current.GetAnnotations()[crd.TransferAnnotation] == "":
			if err = m.checkAdoptable(ctx, r, source, current); err == nil {
				err = m.mark(ctx, r, string(s.Direction))
			}
		}
		if err != nil {
			return fmt.Errorf("create definition %s in the extension server: %w", r.definition(), err)
		}
	}
	if err := m.awaitServed(ctx, m.extension, s.Resources); err != nil {
		return err
	}
	return m.awaitMarked(ctx, s)
}

// awaitMarked waits until the replicas of the extension server have observed the transfer annotations. From then on,
// they store the objects of the move unchanged.
func (m *Mover) awaitMarked(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		err := m.awaitRepeatedly(ctx, "the extension server to begin the transfer of "+
			r.definition(), func(ctx context.Context) error {
			_, err := m.extension.objects.Resource(r.in(r.Version)).List(ctx, metav1.ListOptions{Limit: 1})
			if err == nil {
				return errors.New("it serves the objects to all clients")
			}
			return ignoreMoving(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoreMoving returns nil for the error with which an extension server responds to clients during a transfer.
func ignoreMoving(err error) error {
	if apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "are being moved") {
		return nil
	}
	return err
}

func with(annotations map[string]string, name, value string) map[string]string {
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	return annotations
}

// checkAdoptable returns an error if an existing definition in the extension server has another spec or has objects, so
// that the move cannot use it.
func (m *Mover) checkAdoptable(ctx context.Context, r resource, source, current *unstructured.Unstructured) error {
	if !reflect.DeepEqual(source.Object["spec"], current.Object["spec"]) {
		return errors.New("it exists with another spec; delete it or make both equal")
	}
	list, err := m.extension.objects.Resource(r.in(r.Version)).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if list != nil && len(list.Items) > 0 {
		return errors.New("it exists and has objects; delete them first")
	}
	return nil
}

// mark sets the transfer annotation of a definition in the extension server; an empty value removes the annotation.
func (m *Mover) mark(ctx context.Context, r resource, value string) error {
	return m.updateDefinition(ctx, m.extension, r, func(definition *unstructured.Unstructured) {
		annotations := with(definition.GetAnnotations(), crd.TransferAnnotation, value)
		if value == "" {
			delete(annotations, crd.TransferAnnotation)
		}
		definition.SetAnnotations(annotations)
	})
}

// updateDefinition changes a definition, unless the change makes no difference. It retries conflicts.
func (m *Mover) updateDefinition(
	ctx context.Context, c *cluster, r resource, change func(*unstructured.Unstructured),
) error {
	for {
		current, err := c.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read definition %s of the %s: %w", r.definition(), c.name, err)
		}
		next := current.DeepCopy()
		change(next)
		if reflect.DeepEqual(current.Object, next.Object) {
			return nil
		}
		_, err = c.objects.Resource(definitions).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("update definition %s of the %s: %w", r.definition(), c.name, err)
		}
	}
}

// createHostDefinitions creates the definitions in the host, with the transfer annotation and accessVersion. Only the
// move may write in accessVersion.
func (m *Mover) createHostDefinitions(ctx context.Context, s *state) error {
	if err := m.freeze(ctx, s, []string{accessVersion}); err != nil {
		return err
	}
	err := m.setPriorities(ctx, s, func(_ string, current int64) int64 { return max(current, definitionVersionPriority) })
	if err != nil {
		return err
	}
	if err := m.registerAccess(ctx); err != nil {
		return err
	}
	for _, r := range s.Resources {
		source, err := m.extension.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the extension server's definition: %w", err)
		}
		made := copyOfDefinition(source)
		made.SetAnnotations(with(made.GetAnnotations(), crd.TransferAnnotation, string(s.Direction)))
		spec, _ := made.Object["spec"].(map[string]any)
		made.Object["spec"] = withAccess(spec, r.Version)
		_, err = m.host.objects.Resource(definitions).Create(ctx, made, metav1.CreateOptions{FieldManager: manager})
		if apierrors.IsAlreadyExists(err) {
			err = m.checkCreated(ctx, r)
		}
		if err != nil {
			return fmt.Errorf("create definition %s in the host: %w", r.definition(), err)
		}
	}
	return m.awaitServed(ctx, m.host, s.Resources)
}

// checkCreated returns an error if an existing definition of the host lacks the transfer annotation, so that this move
// did not create it.
func (m *Mover) checkCreated(ctx context.Context, r resource) error {
	current, err := m.host.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
	if err == nil && current.GetAnnotations()[crd.TransferAnnotation] == "" {
		return fmt.Errorf("%s exists and was not created by this move", r.definition())
	}
	return err
}

// addAccess adds accessVersion to the host's definitions. The change of a definition ends the watches of its objects.
func (m *Mover) addAccess(ctx context.Context, s *state) error {
	if err := m.registerAccess(ctx); err != nil {
		return err
	}
	for _, r := range s.Resources {
		err := m.updateDefinition(ctx, m.host, r, func(definition *unstructured.Unstructured) {
			if spec, ok := definition.Object["spec"].(map[string]any); ok {
				definition.Object["spec"] = withAccess(spec, "")
			}
		})
		if err != nil {
			return err
		}
	}
	return m.awaitServed(ctx, m.host, s.Resources)
}

// removeAccess gives the host's definitions the spec of the extension server's definitions, which does not have
// accessVersion, and removes the transfer annotation.
func (m *Mover) removeAccess(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		final, err := m.extension.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the extension server's definition: %w", err)
		}
		err = m.updateDefinition(ctx, m.host, r, func(definition *unstructured.Unstructured) {
			definition.Object["spec"] = final.DeepCopy().Object["spec"]
			annotations := maps.Clone(definition.GetAnnotations())
			delete(annotations, crd.TransferAnnotation)
			definition.SetAnnotations(annotations)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitServed waits until a cluster serves the resources in the version in which the move writes: accessVersion in the
// host.
func (m *Mover) awaitServed(ctx context.Context, c *cluster, resources []resource) error {
	for _, r := range resources {
		version := r.Version
		if c == m.host {
			version = accessVersion
		}
		err := m.await(ctx, fmt.Sprintf("%s to serve %s", c.name, r.in(version)), func(ctx context.Context) error {
			definition, err := c.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if reason := notEstablished(definition); reason != "" {
				return errors.New(reason)
			}
			_, err = c.transfer.Resource(r.in(version)).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// notEstablished returns the reason why a definition is not established, or "" if it is.
func notEstablished(definition *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	message := "it is not established yet"
	for _, item := range conditions {
		condition, _ := item.(map[string]any)
		switch {
		case condition["type"] == "Established" && condition["status"] == "True":
			return ""
		case condition["type"] == "NamesAccepted" && condition["status"] == "False":
			message = fmt.Sprint(condition["message"])
		}
	}
	return message
}

// deleteDefinitions deletes the definitions of the move, whose objects are already deleted, from a cluster.
func (m *Mover) deleteDefinitions(ctx context.Context, c *cluster, s *state) error {
	for _, r := range s.Resources {
		err := c.objects.Resource(definitions).Delete(ctx, r.definition(), metav1.DeleteOptions{})
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("delete definition %s of the %s: %w", r.definition(), c.name, err)
		}
	}
	for _, r := range s.Resources {
		err := m.await(ctx, "the end of definition "+r.definition(), func(ctx context.Context) error {
			_, err := c.objects.Resource(definitions).Get(ctx, r.definition(), metav1.GetOptions{})
			if err == nil {
				return errors.New("it still exists")
			}
			return ignoreNotFound(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
