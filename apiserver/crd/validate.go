package crd

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateType checks apiVersion and kind, which the body of a request declares itself.
func validateType(object *unstructured.Unstructured, kind schema.GroupVersionKind) field.ErrorList {
	var errs field.ErrorList
	if object.GetKind() != kind.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), object.GetKind(), fmt.Sprintf("must be %v", kind.Kind)))
	}
	if apiVersion := kind.GroupVersion().String(); object.GetAPIVersion() != apiVersion {
		errs = append(errs,
			field.Invalid(field.NewPath("apiVersion"), object.GetAPIVersion(), fmt.Sprintf("must be %v", apiVersion)))
	}
	return errs
}

// validateScaleSpec validates the field that spec.replicas of the scale subresource is read from. The schema need not
// restrict the field to the values that a Scale can represent.
func validateScaleSpec(content map[string]any, scale *apiextensionsv1.CustomResourceSubresourceScale) field.ErrorList {
	if scale == nil {
		return nil
	}
	return validateReplicas(content, scale.SpecReplicasPath)
}

// validateScaleStatus validates the fields that status.replicas and status.selector of the scale subresource are read
// from.
func validateScaleStatus(
	content map[string]any, scale *apiextensionsv1.CustomResourceSubresourceScale,
) field.ErrorList {
	if scale == nil {
		return nil
	}
	errs := validateReplicas(content, scale.StatusReplicasPath)
	if scale.LabelSelectorPath == nil {
		return errs
	}
	selector, _, err := unstructured.NestedString(content, split(*scale.LabelSelectorPath)...)
	if err != nil {
		errs = append(errs, field.Invalid(field.NewPath(*scale.LabelSelectorPath), selector, err.Error()))
	}
	return errs
}

// validateReplicas validates a number of replicas, which autoscaling/v1 represents as an int32. A missing field is
// valid.
func validateReplicas(content map[string]any, path string) field.ErrorList {
	replicas, _, err := unstructured.NestedInt64(content, split(path)...)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(field.NewPath(path), replicas, err.Error())}
	case replicas < 0:
		return field.ErrorList{field.Invalid(field.NewPath(path), replicas, "should be a non-negative integer")}
	case replicas > math.MaxInt32:
		return field.ErrorList{
			field.Invalid(field.NewPath(path), replicas, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)),
		}
	}
	return nil
}

// finalizerWarnings returns the warnings about added finalizers with unqualified names.
func finalizerWarnings(finalizers, old []string) []string {
	var warnings []string
	path := field.NewPath("metadata", "finalizers")
	for _, name := range slices.Compact(slices.Sorted(slices.Values(finalizers))) {
		if slices.Contains(old, name) {
			continue
		}
		for _, message := range validation.IsQualifiedName(name) {
			warnings = append(warnings, fmt.Sprintf("%s: %q: %s", path, name, message))
		}
		if advice := finalizerAdvice(name); advice != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %q: %s", path, name, advice))
		}
	}
	return warnings
}

// finalizerAdvice returns the advice of upstream's validateKubeFinalizerName for names without a path, except the
// finalizers of Kubernetes itself.
func finalizerAdvice(name string) string {
	switch {
	case strings.Contains(name, "/"), name == metav1.FinalizerOrphanDependents, name == metav1.FinalizerDeleteDependents,
		name == string(corev1.FinalizerKubernetes):
		return ""
	case strings.Contains(name, "."):
		return "prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other " +
			"finalizer writers"
	}
	return "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
}
