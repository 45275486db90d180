package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

const (
	// patience bounds waits for controllers.
	patience     = 60 * time.Second
	pollInterval = 100 * time.Millisecond
)

// stepTest is a step that runs in its own namespace.
type stepTest struct {
	*testing.T
	*cluster
	namespace string
}

// begin creates the namespace, with the service account of pods.
func (s *stepTest) begin() {
	s.Helper()
	s.create(`{apiVersion: v1, kind: Namespace, metadata: {name: ` + s.namespace + `}}`)
	s.await("the default service account", func(ctx context.Context) error {
		_, err := s.typed.CoreV1().ServiceAccounts(s.namespace).Get(ctx, "default", meta.GetOptions{})
		return err
	})
}

// create creates the objects of a YAML text.
func (s *stepTest) create(text string) {
	s.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		object := s.parse(document)
		if _, err := s.resource(object.GroupVersionKind()).Create(s.Context(), object, meta.CreateOptions{}); err != nil {
			s.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func (s *stepTest) parse(document string) *unstructured.Unstructured {
	s.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
		s.Fatal(err)
	}
	return object
}

func (s *stepTest) resource(kind schema.GroupVersionKind) dynamic.ResourceInterface {
	s.Helper()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		s.Fatal(err)
	}
	if mapping.Scope.Name() == "root" {
		return s.dynamic.Resource(mapping.Resource)
	}
	return s.dynamic.Resource(mapping.Resource).Namespace(s.namespace)
}

// of returns the client of a kind, written as Kind or Kind.version.group.
func (s *stepTest) of(kind string) dynamic.ResourceInterface {
	s.Helper()
	parts := strings.SplitN(kind, ".", 2)
	group := ""
	if len(parts) == 2 {
		group = parts[1]
	}
	mapping, err := s.mapper.RESTMapping(schema.GroupKind{Kind: parts[0], Group: group})
	if err != nil {
		s.Fatal(err)
	}
	return s.resource(mapping.GroupVersionKind)
}

func (s *stepTest) patch(kind, name, merge string, subresources ...string) {
	s.Helper()
	body, err := yaml.YAMLToJSON([]byte(merge))
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.of(kind).Patch(
		s.Context(), name, types.MergePatchType, body, meta.PatchOptions{}, subresources...,
	); err != nil {
		s.Fatalf("patch %s %s: %v", kind, name, err)
	}
}

func (s *stepTest) delete(kind, name string, propagation meta.DeletionPropagation) {
	s.Helper()
	if err := s.of(kind).Delete(s.Context(), name, meta.DeleteOptions{PropagationPolicy: &propagation}); err != nil {
		s.Fatalf("delete %s %s: %v", kind, name, err)
	}
}

// await waits until a condition returns no error.
func (s *stepTest) await(what string, condition func(context.Context) error) {
	s.Helper()
	last := errors.New("never asked")
	err := wait.PollUntilContextTimeout(s.Context(), pollInterval, patience, true, func(
		ctx context.Context,
	) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("timed out waiting for %s: %v", what, last)
	}
}

// awaitField waits until a field of an object, by its path with dots, is printed as wanted.
func (s *stepTest) awaitField(kind, name, path string, want any) {
	s.Helper()
	s.await(fmt.Sprintf("%s of %s %s to be %v", path, kind, name, want), func(ctx context.Context) error {
		object, err := s.of(kind).Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return err
		}
		got, _, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path, ".")...)
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("it is %v in %v", got, object.Object["status"])
		}
		return err
	})
}

// awaitCondition waits for a condition of an object's status.
func (s *stepTest) awaitCondition(kind, name, condition, status string) {
	s.Helper()
	s.await(fmt.Sprintf("%s %s to be %s=%s", kind, name, condition, status), func(ctx context.Context) error {
		object, err := s.of(kind).Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == condition && c["status"] == status {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", conditions)
	})
}

func (s *stepTest) awaitGone(kind, name string) {
	s.Helper()
	s.await(kind+" "+name+" to be gone", func(ctx context.Context) error {
		object, err := s.of(kind).Get(ctx, name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is there: %v %v", object.Object["metadata"], object.Object["status"])
		}
		return err
	})
}

// pods are those of the namespace with a label app.
func (s *stepTest) pods(ctx context.Context, app string) ([]core.Pod, error) {
	list, err := s.typed.CoreV1().Pods(s.namespace).List(ctx, meta.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// awaitPods waits until there is exactly the given number of pods, each bound to a node, ready, and of an image.
func (s *stepTest) awaitPods(app string, count int, image string) (found []core.Pod) {
	s.Helper()
	s.await(fmt.Sprintf("%d pods of %s with image %s", count, app, image), func(ctx context.Context) (err error) {
		if found, err = s.pods(ctx, app); err != nil {
			return err
		}
		if len(found) != count {
			return fmt.Errorf("there are %d", len(found))
		}
		for _, pod := range found {
			if pod.Spec.NodeName == "" || !ready(&pod) || pod.DeletionTimestamp != nil || pod.Spec.Containers[0].Image != image {
				return fmt.Errorf("pod %s on %q with %s: %+v", pod.Name, pod.Spec.NodeName,
					pod.Spec.Containers[0].Image, pod.Status)
			}
		}
		return nil
	})
	return found
}

func ready(pod *core.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}

// template is that of a pod with a label app.
func template(app string, more ...string) string {
	return `{metadata: {labels: {app: ` + app + `}}, spec: {` +
		strings.Join(append(more, `containers: [{name: c, image: "image:1"}]`), ", ") + `}}`
}
