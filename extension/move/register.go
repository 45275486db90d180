package move

import (
	"cmp"
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
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

const (
	// automanaged is the label of the APIServices that a host maintains for its own CustomResourceDefinitions. The host
	// does not change other APIServices.
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	// ownLabels is the prefix of the labels that a Quorate operator sets.
	ownLabels = "quorate.dev/"

	// Priorities of the APIServices that a host creates for CustomResourceDefinitions.
	definitionGroupPriority, definitionVersionPriority = 1000, 100
	// lowestPriority is the priority of accessVersion. With definitionVersionPriority or more for the other versions,
	// it keeps accessVersion from being the preferred version, which controllers of the host use. Aggregated discovery
	// uses definitionVersionPriority for all versions of CustomResourceDefinitions, regardless of their APIServices,
	// and sorts names that do not look like v1 last.
	lowestPriority = 1
)

// Registration describes the APIServices with which the host sends requests to the extension server.
type Registration struct {
	// Specs are the specs of the APIServices by version, if no operator manages them.
	Specs map[string]map[string]any
	// Labels are the labels by which an operator recognizes the APIServices as its own and sets their specs. Versions
	// lists the versions for which it does so. Both are empty if no operator manages the APIServices.
	Labels   map[string]string
	Versions []string
}

// missing returns the versions for which there is neither a spec nor an operator.
func (r *Registration) missing(versions []string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(version string) bool {
		return r.Specs[version] != nil || slices.Contains(r.Versions, version)
	})
}

func (m *Mover) apiServiceName(version string) string { return version + "." + m.Group }

// registerExtension makes the host send requests in all versions to the extension server, although the host has
// CustomResourceDefinitions for them. A single update switches each APIService: without the APIService, even briefly,
// the host's garbage collector would consider owners deleted.
func (m *Mover) registerExtension(ctx context.Context, s *state) error {
	for _, version := range s.versions() {
		err := m.updateAPIService(ctx, version, func(service *unstructured.Unstructured) {
			labels := maps.Clone(service.GetLabels())
			if labels == nil {
				labels = map[string]string{}
			}
			delete(labels, automanaged)
			maps.Copy(labels, m.Registration.Labels)
			service.SetLabels(labels)
			if spec := m.Registration.Specs[version]; spec != nil {
				service.Object["spec"] = (&unstructured.Unstructured{Object: spec}).DeepCopy().Object
				raisePriority(service)
			}
		})
		if err != nil {
			return err
		}
	}
	return m.awaitUnavailable(ctx, s)
}

// raisePriority raises versionPriority to at least the priority of the host's own definitions, so that accessVersion
// stays last.
func raisePriority(service *unstructured.Unstructured) {
	if priorityOf(service) < definitionVersionPriority {
		_ = unstructured.SetNestedField(service.Object, int64(definitionVersionPriority), "spec", "versionPriority")
	}
}

func priorityOf(service *unstructured.Unstructured) int64 {
	value, _, _ := unstructured.NestedFieldNoCopy(service.Object, "spec", "versionPriority")
	switch number := value.(type) {
	case int64:
		return number
	case float64: // decoded from a file
		return int64(number)
	}
	return 0
}

// setPriorities sets the versionPriority of the APIServices of all versions to the results of a function.
func (m *Mover) setPriorities(ctx context.Context, s *state, of func(version string, current int64) int64) error {
	for _, version := range s.versions() {
		err := m.updateAPIService(ctx, version, func(service *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(service.Object, of(version, priorityOf(service)), "spec", "versionPriority")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// restorePriorities sets versionPriority to its value after a move: in the extension server's APIServices the value of
// Registration.Specs, or the recorded value if a move to the host is aborted.
func (m *Mover) restorePriorities(ctx context.Context, s *state) error {
	return m.setPriorities(ctx, s, func(version string, current int64) int64 {
		wanted := s.Priorities[version]
		if spec := m.Registration.Specs[version]; s.Direction == ToExtension && spec != nil {
			wanted = priorityOf(&unstructured.Unstructured{Object: map[string]any{"spec": spec}})
		}
		return cmp.Or(wanted, current)
	})
}

// registerHost makes the host serve all versions itself: it changes their APIServices to the form that a host maintains
// for its own CustomResourceDefinitions.
func (m *Mover) registerHost(ctx context.Context, s *state) error {
	for _, version := range s.versions() {
		err := m.updateAPIService(ctx, version, func(service *unstructured.Unstructured) {
			labels := maps.Clone(service.GetLabels())
			maps.DeleteFunc(labels, func(name, _ string) bool { return strings.HasPrefix(name, ownLabels) })
			if labels == nil {
				labels = map[string]string{}
			}
			labels[automanaged] = "true"
			service.SetLabels(labels)
			service.Object["spec"] = map[string]any{
				"group": m.Group, "version": version,
				"groupPriorityMinimum": int64(definitionGroupPriority), "versionPriority": int64(definitionVersionPriority),
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Mover) updateAPIService(ctx context.Context, version string, change func(*unstructured.Unstructured)) error {
	name := m.apiServiceName(version)
	for {
		current, err := m.host.objects.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read APIService: %w", err)
		}
		next := current.DeepCopy()
		change(next)
		if reflect.DeepEqual(current.Object, next.Object) {
			return nil
		}
		_, err = m.host.objects.Resource(apiServices).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("update APIService %s: %w", name, err)
		}
	}
}

// registerAccess creates the APIService of accessVersion, before the host creates one with a higher priority.
func (m *Mover) registerAccess(ctx context.Context) error {
	service := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": m.Group, "version": accessVersion,
		"groupPriorityMinimum": int64(lowestPriority), "versionPriority": int64(lowestPriority),
	}}}
	service.SetGroupVersionKind(apiServices.GroupVersion().WithKind("APIService"))
	service.SetName(m.apiServiceName(accessVersion))
	_, err := m.host.objects.Resource(apiServices).Create(ctx, service, metav1.CreateOptions{FieldManager: manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create APIService %s: %w", service.GetName(), err)
	}
	return nil
}

func (m *Mover) unregisterAccess(ctx context.Context) error {
	err := m.host.objects.Resource(apiServices).Delete(ctx, m.apiServiceName(accessVersion), metav1.DeleteOptions{})
	return ignoreNotFound(err)
}

// awaitUnavailable waits until the host responds to requests in all versions with the extension server's error that the
// objects are being moved.
func (m *Mover) awaitUnavailable(ctx context.Context, s *state) error {
	err := m.awaitEach(ctx, s, "the host to send requests for %s to the extension server", func(
		_ resource, err error,
	) error {
		if err == nil {
			return errors.New("they are served to all clients")
		}
		return ignoreMoving(err)
	})
	if err != nil {
		return err
	}
	return m.settle(ctx)
}

// awaitAvailable waits until the host responds to requests in all versions with objects.
func (m *Mover) awaitAvailable(ctx context.Context, s *state) error {
	return m.awaitEach(ctx, s, "the host to serve %s", func(_ resource, err error) error { return err })
}

// awaitEach waits until lists of all resources in all versions through the host have a result, several times in
// succession, that check accepts.
func (m *Mover) awaitEach(ctx context.Context, s *state, what string, check func(resource, error) error) error {
	for _, r := range s.Resources {
		for _, version := range r.Served {
			err := m.awaitRepeatedly(ctx, fmt.Sprintf(what, r.in(version)), func(ctx context.Context) error {
				_, err := m.host.objects.Resource(r.in(version)).List(ctx, metav1.ListOptions{Limit: 1})
				return check(r, err)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
