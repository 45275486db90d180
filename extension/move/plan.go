package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"quorate.dev/apiserver/crd"
)

// Plan describes the effects of a move, and the problems that prevent it.
type Plan struct {
	Steps []string
	Kinds []Kind
	// Lost are the properties of objects that the move does not preserve.
	Lost []string
	// Problems prevent the move.
	Problems []string

	resources  []resource
	namespaces map[string]bool  // namespaces that contain objects of the source
	priorities map[string]int64 // versionPriority of the extension server's APIServices, by version
}

// Kind describes the objects of one CustomResourceDefinition.
type Kind struct {
	Definition string
	Versions   []string
	Objects    int
	Finalizers int // objects with finalizers
	Deleting   int // objects that are being deleted
}

// ProblemsError contains the reasons why a move cannot begin.
type ProblemsError struct{ Problems []string }

func (e *ProblemsError) Error() string { return strings.Join(e.Problems, "; ") }

// lost are the properties of all objects that a move does not preserve, by direction.
var lost = map[Direction][]string{
	ToExtension: {"metadata.resourceVersion: clients list again"},
	ToHost: {
		"metadata.resourceVersion: clients list again",
		"metadata.uid: owner references of objects in the host are rewritten",
		"metadata.creationTimestamp and metadata.generation",
		"metadata.deletionTimestamp: objects that are being deleted are deleted again with the same finalizers",
	},
}

// Plan checks the clusters and returns the effects of the move. It writes nothing.
func (m *Mover) Plan(ctx context.Context) (*Plan, error) {
	p := &Plan{Lost: lost[m.Direction], namespaces: map[string]bool{}, priorities: map[string]int64{}}
	for _, one := range steps[m.Direction] {
		p.Steps = append(p.Steps, one.text)
	}
	from, to := m.host, m.extension
	if m.Direction == ToHost {
		from, to = to, from
	}
	found, err := from.definitionsOf(ctx, m.Group)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		p.Problems = append(p.Problems, fmt.Sprintf("the %s has no CustomResourceDefinitions of %s", from.name, m.Group))
		return p, nil
	}
	for i := range found {
		if err := m.planDefinition(ctx, p, from, to, &found[i]); err != nil {
			return nil, err
		}
	}
	if err := m.planNamespaces(ctx, p); err != nil {
		return nil, err
	}
	return p, m.planRegistration(ctx, p)
}

// planNamespaces adds a problem for each namespace that is being deleted in the host, because objects cannot be created
// in it.
func (m *Mover) planNamespaces(ctx context.Context, p *Plan) error {
	if m.Direction != ToHost {
		return nil
	}
	list, err := m.host.typed.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for i := range list.Items {
		if one := &list.Items[i]; p.namespaces[one.Name] && one.DeletionTimestamp != nil {
			p.problem("namespace %s, which has objects, is being deleted", one.Name)
		}
	}
	return nil
}

func (p *Plan) problem(format string, arguments ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, arguments...))
}

func (m *Mover) planDefinition(
	ctx context.Context, p *Plan, from, to *cluster, definition *unstructured.Unstructured,
) error {
	r, err := resourceOf(definition)
	if err != nil {
		p.problem("%v", err)
		return nil
	}
	p.resources = append(p.resources, r)
	switch {
	case definition.GetDeletionTimestamp() != nil:
		p.problem("CustomResourceDefinition %s is being deleted", definition.GetName())
	case notEstablished(definition) != "":
		p.problem("CustomResourceDefinition %s: %s", definition.GetName(), notEstablished(definition))
	case definition.GetAnnotations()[crd.TransferAnnotation] != "":
		p.problem("CustomResourceDefinition %s is part of another move", definition.GetName())
	}
	if strategy, _, _ := unstructured.NestedString(definition.Object, "spec", "conversion", "strategy"); strategy ==
		"Webhook" &&
		m.Direction == ToHost && len(versionsOf(definition)) > 1 {
		// Writes in accessVersion are not converted, so that the host drops managed fields of other versions.
		p.Lost = append(slices.Clone(p.Lost), fmt.Sprintf("metadata.managedFields of %s: entries of versions other than %s",
			definition.GetName(), r.Version))
	}
	kind := Kind{Definition: definition.GetName(), Versions: r.Served}
	objects := collection{from.transfer, r.in(r.Version), r.Namespaced}
	if _, err := objects.each(ctx, func(object *unstructured.Unstructured) error {
		kind.Objects++
		p.namespaces[object.GetNamespace()] = true
		if len(object.GetFinalizers()) > 0 {
			kind.Finalizers++
		}
		if object.GetDeletionTimestamp() != nil {
			kind.Deleting++
		}
		return nil
	}); err != nil {
		return err
	}
	p.Kinds = append(p.Kinds, kind)
	return m.planDestination(ctx, p, to, definition, r)
}

// planDestination adds a problem if the destination rejects the definition, or has one that the move cannot use.
func (m *Mover) planDestination(
	ctx context.Context, p *Plan, to *cluster, definition *unstructured.Unstructured, r resource,
) error {
	current, err := to.objects.Resource(definitions).Get(ctx, definition.GetName(), metav1.GetOptions{})
	switch {
	case err == nil && to == m.host:
		p.problem("the host has a CustomResourceDefinition %s already", definition.GetName())
		return nil
	case err == nil:
		if err := m.checkAdoptable(ctx, r, definition, current); err != nil {
			p.problem("CustomResourceDefinition %s in the extension server: %v", definition.GetName(), err)
		}
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read definition %s of the %s: %w", definition.GetName(), to.name, err)
	}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err = to.objects.Resource(definitions).Create(ctx, copyOfDefinition(definition), dryRun)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		p.problem("the %s does not accept CustomResourceDefinition %s: %v", to.name, definition.GetName(), err)
		return nil
	}
	return err
}

// planRegistration adds a problem for each version whose APIService in the host does not refer to the source, and for
// each version without a Registration of the extension server.
func (m *Mover) planRegistration(ctx context.Context, p *Plan) error {
	s := &state{Resources: p.resources}
	if m.Direction == ToExtension {
		if missing := m.Registration.missing(s.versions()); len(missing) > 0 {
			p.problem("the extension server is not registered for the versions %s", strings.Join(missing, ", "))
		}
	}
	for _, version := range s.versions() {
		service, err := m.host.objects.Resource(apiServices).Get(ctx, m.apiServiceName(version), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			p.problem("the host has no APIService %s", m.apiServiceName(version))
			continue
		}
		if err != nil {
			return fmt.Errorf("read APIService: %w", err)
		}
		if m.Direction == ToHost {
			p.priorities[version] = priorityOf(service)
		}
		remote, _, _ := unstructured.NestedMap(service.Object, "spec", "service")
		switch {
		case m.Direction == ToExtension && remote != nil:
			p.problem("APIService %s refers to another server", service.GetName())
		case m.Direction == ToHost && (remote == nil || service.GetLabels()[automanaged] != ""):
			p.problem("APIService %s does not refer to the extension server", service.GetName())
		}
	}
	return nil
}
