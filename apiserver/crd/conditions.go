package crd

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/cert"
)

type condition = apiextensionsv1.CustomResourceDefinitionCondition

// This file computes the status of a definition as pure functions. It mirrors four controllers of
// apiextensions-apiserver: NamingConditionController, EstablishingController, ConditionController of non-structural
// schemas, and KubernetesAPIApprovalPolicyConformantConditionController. Upstream, each of them writes the status
// separately; here one write has all conditions.

// Claimed has the accepted names of the other definitions of a group. Definitions of different groups do not conflict.
type Claimed struct {
	Resources sets.Set[string] // plural, singular and short names, which share one namespace
	Kinds     sets.Set[string] // kinds and list kinds
}

// Claim returns a Claimed with the given accepted names.
func Claim(accepted ...apiextensionsv1.CustomResourceDefinitionNames) Claimed {
	c := Claimed{Resources: sets.New[string](), Kinds: sets.New[string]()}
	for _, names := range accepted {
		c.Resources.Insert(names.Plural, names.Singular)
		c.Resources.Insert(names.ShortNames...)
		c.Kinds.Insert(names.Kind, names.ListKind)
	}
	return c
}

// Conditions returns the desired status of a definition, given the accepted names of the other definitions of its
// group. If establish is false, a definition is not established yet: its condition Established has the reason
// Installing.
func Conditions(
	crd *apiextensionsv1.CustomResourceDefinition, others Claimed, establish bool,
) apiextensionsv1.CustomResourceDefinitionStatus {
	return conditions(crd, others, establish, nonStructural(crd))
}

// conditions implements Conditions. problem is the condition NonStructuralSchema, or nil if all schemas are structural.
// It is an argument because no other condition depends on the schemas: the caller computes it once per generation and
// passes a definition without schemas. The order matters: Established depends on NamesAccepted.
func conditions(
	crd *apiextensionsv1.CustomResourceDefinition, others Claimed, establish bool, problem *condition,
) apiextensionsv1.CustomResourceDefinitionStatus {
	next := &apiextensionsv1.CustomResourceDefinition{Spec: crd.Spec, Status: *crd.Status.DeepCopy()}
	names, accepted := acceptNames(crd.Spec.Names, crd.Status.AcceptedNames, others)
	next.Status.AcceptedNames = names
	apihelpers.SetCRDCondition(next, accepted)
	apihelpers.SetCRDCondition(next, established(next, establish))
	next.Status.StoredVersions = withStorageVersion(crd)
	if problem != nil {
		apihelpers.SetCRDCondition(next, *problem)
	} else {
		apihelpers.RemoveCRDCondition(next, apiextensionsv1.NonStructuralSchema)
	}
	if approval := approved(crd); approval != nil {
		apihelpers.SetCRDCondition(next, *approval)
	}
	return next.Status
}

// withStorageVersion returns the stored versions including the current storage version. A version is never removed
// here, because objects may still be stored in it: users remove it from the status after they have migrated the
// objects.
func withStorageVersion(crd *apiextensionsv1.CustomResourceDefinition) []string {
	storage, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil || slices.Contains(crd.Status.StoredVersions, storage) {
		return crd.Status.StoredVersions
	}
	return append(slices.Clone(crd.Status.StoredVersions), storage)
}

// acceptNames accepts every requested name that no other definition of the group has accepted. A name that the
// definition has accepted before remains its own even if it is in conflict; a name in conflict keeps its former value.
// The condition reports the last conflict in the order of calculateNamesAndConditions: plural, singular, short names,
// kind, list kind.
func acceptNames(
	requested, current apiextensionsv1.CustomResourceDefinitionNames, others Claimed,
) (apiextensionsv1.CustomResourceDefinitionNames, condition) {
	next := current
	next.Categories = requested.Categories
	result := condition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts",
		Message: "no conflicts found",
	}
	for _, name := range []struct {
		requested string
		next      *string
		claimed   sets.Set[string]
		reason    string
	}{
		{requested.Plural, &next.Plural, others.Resources, "PluralConflict"},
		{requested.Singular, &next.Singular, others.Resources, "SingularConflict"},
		{requested.Kind, &next.Kind, others.Kinds, "KindConflict"},
		{requested.ListKind, &next.ListKind, others.Kinds, "ListKindConflict"},
	} {
		if name.requested != *name.next && name.claimed.Has(name.requested) {
			result.Status, result.Reason, result.Message =
				apiextensionsv1.ConditionFalse, name.reason, inUse(name.requested).Error()
			continue
		}
		*name.next = name.requested
	}
	if err := shortNamesInUse(requested.ShortNames, current.ShortNames, others.Resources); err != nil {
		// A conflict of kinds takes precedence.
		if result.Reason != "KindConflict" && result.Reason != "ListKindConflict" {
			result.Status, result.Reason, result.Message = apiextensionsv1.ConditionFalse, "ShortNamesConflict", err.Error()
		}
	} else {
		next.ShortNames = requested.ShortNames
	}
	return next, result
}

// shortNamesInUse returns an error that names all short names in conflict. Short names are accepted together or not at
// all.
func shortNamesInUse(requested, current []string, claimed sets.Set[string]) error {
	var errs []error
	for _, name := range requested {
		if !slices.Contains(current, name) && claimed.Has(name) {
			errs = append(errs, inUse(name))
		}
	}
	return utilerrors.NewAggregate(errs)
}

func inUse(name string) error { return fmt.Errorf("%q is already in use", name) }

// established returns the condition Established, given the condition NamesAccepted. Once True, it remains True, even if
// changed names are not accepted: objects exist, and are served under the names that were accepted before.
func established(crd *apiextensionsv1.CustomResourceDefinition, establish bool) condition {
	result := condition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "NotAccepted",
		Message: "not all names are accepted",
	}
	old := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	if old != nil {
		result = *old
	}
	if result.Status == apiextensionsv1.ConditionTrue ||
		!apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		return result
	}
	if problem := invalidBundle(crd); problem != "" {
		return condition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse,
			Reason: "InvalidCABundle", Message: problem,
		}
	}
	if !establish {
		return condition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "Installing",
			Message: "the initial names have been accepted",
		}
	}
	return condition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, Reason: "InitialNamesAccepted",
		Message: "the initial names have been accepted",
	}
}

// invalidBundle returns the error of the webhook's CA bundle, or "".
func invalidBundle(crd *apiextensionsv1.CustomResourceDefinition) string {
	conversion := crd.Spec.Conversion
	if conversion == nil || conversion.Webhook == nil || conversion.Webhook.ClientConfig == nil {
		return ""
	}
	bundle := conversion.Webhook.ClientConfig.CABundle
	if _, err := cert.ParseCertsPEM(bundle); len(bundle) == 0 || err == nil {
		return ""
	}
	return "The conversion webhook CABundle is invalid"
}

// nonStructural returns the NonStructuralSchema condition, nil if all schemas are structural. It is the most expensive
// condition, because it converts all schemas.
func nonStructural(crd *apiextensionsv1.CustomResourceDefinition) *condition {
	result := &condition{
		Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue, Reason: "Violations",
	}
	var errs field.ErrorList
	if crd.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i, v := range crd.Spec.Versions {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		found, err := structuralErrors(v.Schema,
			field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"))
		if err != nil {
			result.Status, result.Reason = apiextensionsv1.ConditionUnknown, "StructuralError"
			result.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err)
			return result
		}
		errs = append(errs, found...)
	}
	if len(errs) == 0 {
		return nil
	}
	result.Message = errs.ToAggregate().Error()
	return result
}

// structuralErrors returns the reasons why a schema is not structural. It returns an error for a schema that cannot be
// checked.
func structuralErrors(schema *apiextensionsv1.CustomResourceValidation, path *field.Path) (field.ErrorList, error) {
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(
		schema, internal, nil,
	); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return structuralschema.ValidateStructural(path, structural), nil
}

// approved returns the condition KubernetesAPIApprovalPolicyConformant, or nil if the group is not protected
// (*.k8s.io). The condition depends only on the annotation api-approved.kubernetes.io. It is information: the
// definition is served whatever its status.
func approved(crd *apiextensionsv1.CustomResourceDefinition) *condition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	result := &condition{
		Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Message: message,
	}
	switch state {
	case apihelpers.APIApprovalInvalid:
		result.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		result.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		result.Status, result.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		result.Reason = "UnapprovedAnnotation"
	default:
		result.Status, result.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return result
}
