package serviceip

import (
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/utils/ptr"
)

// normalizeClusterIPs derives clusterIPs from clusterIP for clients that set only clusterIP. It mirrors upstream's
// normalizeClusterIPs.
func normalizeClusterIPs(service, previous *api.Service) {
	spec := &service.Spec
	if previous == nil {
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
		return
	}
	before := &previous.Spec
	if spec.ClusterIP == before.ClusterIP {
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = before.ClusterIPs
		}
		return
	}
	if !slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
		return
	}
	spec.ClusterIPs = nil
	if spec.ClusterIP != "" || before.ClusterIP == "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// initIPFamilyFields sets the IP families and the IP family policy of a Service. It mirrors upstream's defaultOnWrite.
func (a *Allocator) initIPFamilyFields(service, previous *api.Service) error {
	if service.Spec.Type == api.ServiceTypeExternalName || matchesPreferDualStack(service, previous) {
		return nil
	}
	completePolicy(service, previous)
	if errs := validation.ValidateServiceClusterIPsRelatedFields(service, previous); len(errs) > 0 {
		return apierrors.NewInvalid(api.Kind("Service"), service.Name, errs)
	}
	errs := reduceFamilies(service, previous)
	errs = append(errs, checkSingle(service)...)
	errs = append(errs, a.inferFamilies(service)...)
	if len(errs) == 0 && (!isHeadless(service) || len(service.Spec.Selector) > 0) {
		errs = a.checkConfigured(service)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(api.Kind("Service"), service.Name, errs)
	}
	a.addFamilies(service)
	return nil
}

// matchesPreferDualStack reports whether a Service with the policy PreferDualStack stays as it is: a change of the
// cluster's families neither upgrades nor downgrades it.
func matchesPreferDualStack(service, previous *api.Service) bool {
	return previous != nil && previous.Spec.Type == service.Spec.Type &&
		ptr.Deref(service.Spec.IPFamilyPolicy, "") == api.IPFamilyPolicyPreferDualStack &&
		ptr.Deref(previous.Spec.IPFamilyPolicy, api.IPFamilyPolicyPreferDualStack) == api.IPFamilyPolicyPreferDualStack &&
		slices.Equal(service.Spec.ClusterIPs, previous.Spec.ClusterIPs) &&
		slices.Equal(service.Spec.IPFamilies, previous.Spec.IPFamilies)
}

func completePolicy(service, previous *api.Service) {
	if service.Spec.IPFamilyPolicy != nil {
		return
	}
	switch {
	case previous != nil && previous.Spec.IPFamilyPolicy != nil:
		service.Spec.IPFamilyPolicy = previous.Spec.IPFamilyPolicy
	case service.Spec.ClusterIP == api.ClusterIPNone && len(service.Spec.Selector) == 0:
		service.Spec.IPFamilyPolicy = ptr.To(api.IPFamilyPolicyRequireDualStack)
	default:
		service.Spec.IPFamilyPolicy = ptr.To(api.IPFamilyPolicySingleStack)
	}
}

// reduceFamilies drops the secondary address and family of a Service that becomes single-stack, and rejects their
// removal from other Services.
func reduceFamilies(service, previous *api.Service) field.ErrorList {
	if previous == nil {
		return nil
	}
	spec, before := &service.Spec, &previous.Spec
	if isSingleStack(service) {
		if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
		return nil
	}
	var errs field.ErrorList
	if n := len(spec.ClusterIPs); n > 0 && n < len(before.ClusterIPs) {
		errs = append(errs,
			field.Invalid(policyPath(), spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if n := len(spec.IPFamilies); n > 0 && n < len(before.IPFamilies) {
		errs = append(errs,
			field.Invalid(policyPath(), spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return errs
}

func checkSingle(service *api.Service) field.ErrorList {
	var errs field.ErrorList
	const detail = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	if isSingleStack(service) && len(service.Spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(policyPath(), service.Spec.IPFamilyPolicy, fmt.Sprintf(detail, "cluster IPs")))
	}
	if isSingleStack(service) && len(service.Spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(policyPath(), service.Spec.IPFamilyPolicy, fmt.Sprintf(detail, "IP families")))
	}
	return errs
}

// inferFamilies adds the families of the requested addresses.
func (a *Allocator) inferFamilies(service *api.Service) field.ErrorList {
	var errs field.ErrorList
	for i, address := range service.Spec.ClusterIPs {
		if address == api.ClusterIPNone {
			break
		}
		if i < len(service.Spec.IPFamilies) {
			continue
		}
		family := familyOf(address)
		if !slices.Contains(a.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), service.Spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		service.Spec.IPFamilies = append(service.Spec.IPFamilies, family)
	}
	return errs
}

func (a *Allocator) checkConfigured(service *api.Service) field.ErrorList {
	var errs field.ErrorList
	if ptr.Deref(service.Spec.IPFamilyPolicy, "") == api.IPFamilyPolicyRequireDualStack && len(a.families) < 2 {
		errs = append(errs,
			field.Invalid(policyPath(), service.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range service.Spec.IPFamilies {
		if !slices.Contains(a.families, family) {
			errs = append(errs,
				field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	return errs
}

// addFamilies adds the cluster's default family and, for dual-stack Services, the other family. The endpoints of a
// headless Service without selector are not managed by the cluster, so that it may have a family that the cluster
// lacks.
func (a *Allocator) addFamilies(service *api.Service) {
	if len(service.Spec.IPFamilies) == 0 {
		service.Spec.IPFamilies = []api.IPFamily{a.families[0]}
	}
	foreign := isHeadless(service) && len(service.Spec.Selector) == 0
	if isSingleStack(service) || len(service.Spec.IPFamilies) != 1 || len(a.families) < 2 && !foreign {
		return
	}
	service.Spec.IPFamilies = append(service.Spec.IPFamilies, otherFamily(service.Spec.IPFamilies[0]))
}

func otherFamily(family api.IPFamily) api.IPFamily {
	if family == api.IPv4Protocol {
		return api.IPv6Protocol
	}
	return api.IPv4Protocol
}

func isSingleStack(service *api.Service) bool {
	return ptr.Deref(service.Spec.IPFamilyPolicy, "") == api.IPFamilyPolicySingleStack
}

func policyPath() *field.Path { return field.NewPath("spec", "ipFamilyPolicy") }

// familyOf returns the family of an address, which may have leading zeros, or "unknown".
func familyOf(text string) api.IPFamily {
	address, ok := parseAddress(text)
	if !ok {
		return "unknown"
	}
	return familyOfAddress(address)
}

// familyOfAddress returns the family of a valid address.
func familyOfAddress(address netip.Addr) api.IPFamily {
	if address.Is4() {
		return api.IPv4Protocol
	}
	return api.IPv6Protocol
}
