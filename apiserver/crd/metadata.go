package crd

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// metadataPath is the path of an object's metadata in validation errors.
const metadataPath = "metadata"

// validateNewMetadata validates the metadata of a new custom resource, by handwritten rules and declaratively.
func (s *strategy) validateNewMetadata(ctx context.Context, created *unstructured.Unstructured) field.ErrorList {
	metadata, problem := metadataOf(created)
	if problem != nil {
		return field.ErrorList{problem}
	}
	return validation.ValidateObjectMetaDeclaratively(ctx, operation.Create, metadata, nil, s.version.of.namespaced,
		validation.NameIsDNSSubdomain, field.NewPath(metadataPath), betaEnabled())
}

// validateMetadata validates the metadata of an updated custom resource, by handwritten rules and declaratively.
func (s *strategy) validateMetadata(ctx context.Context, updated, old *unstructured.Unstructured) field.ErrorList {
	metadata, problem := metadataOf(updated)
	if problem != nil {
		return field.ErrorList{problem}
	}
	previous, problem := metadataOf(old)
	if problem != nil {
		return field.ErrorList{problem}
	}
	return validation.ValidateObjectMetaDeclaratively(ctx, operation.Update, metadata, previous, s.version.of.namespaced,
		nil, field.NewPath(metadataPath), betaEnabled())
}

// betaEnabled reports whether declarative validation rules of beta stability are enforced.
func betaEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.DeclarativeValidationBeta)
}

// metadataOf returns the metadata of a custom resource in the type of built-in objects. It mirrors getObjectMeta of
// apiextensions-apiserver.
func metadataOf(object *unstructured.Unstructured) (*metav1.ObjectMeta, *field.Error) {
	metadata := &metav1.ObjectMeta{}
	sent := object.Object["metadata"]
	if sent == nil {
		return metadata, nil
	}
	path := field.NewPath(metadataPath)
	fields, ok := sent.(map[string]any)
	if !ok {
		return nil, field.Invalid(path, sent, fmt.Sprintf("expected map[string]interface{}, got %T", sent))
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, metadata); err != nil {
		return nil, field.Invalid(path, sent, err.Error())
	}
	return metadata, nil
}
