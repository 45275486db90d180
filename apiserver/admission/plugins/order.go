package plugins

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// place is the place of a plugin in the order of admission.
type place struct {
	name string
	on   bool // enabled by default
}

// order is kube-apiserver's order of plugins. All mutators run in this order first, then all validators.
var order = []place{
	{"AlwaysAdmit", false},
	{"NamespaceAutoProvision", false},
	{NamespaceLifecycle, true},
	{"NamespaceExists", false},
	{"LimitPodHardAntiAffinityTopology", false},
	{"LimitRanger", true},
	{"ServiceAccount", true},
	{"NodeRestriction", false},
	{"TaintNodesByCondition", true},
	{"AlwaysPullImages", false},
	{"ImagePolicyWebhook", false},
	{"PodSecurity", true},
	{"PodNodeSelector", false},
	{"Priority", true},
	{"DefaultTolerationSeconds", true},
	{"PodTolerationRestriction", false},
	{"EventRateLimit", false},
	{"ExtendedResourceToleration", false},
	{"DefaultStorageClass", true},
	{"StorageObjectInUseProtection", true},
	{"PodGroupProtection", true},
	{"OwnerReferencesPermissionEnforcement", false},
	{"PersistentVolumeClaimResize", true},
	{"RuntimeClass", true},
	{"CertificateApproval", true},
	{"CertificateSigning", true},
	{"ClusterTrustBundleAttest", true},
	{"CertificateSubjectRestriction", true},
	{"DefaultIngressClass", true},
	{"DenyServiceExternalIPs", false},
	{"PodTopologyLabels", true},
	{"NodeDeclaredFeatureValidator", true},
	{"PodResizeValidator", true},
	{MutatingAdmissionPolicy, true},
	{MutatingAdmissionWebhook, true},
	{ValidatingAdmissionPolicy, true},
	{ValidatingAdmissionWebhook, true},
	{"ResourceQuota", true},
	{"AlwaysDeny", false},
}

// These are the names of plugins that New does not create.
const (
	NamespaceLifecycle         = "NamespaceLifecycle"
	MutatingAdmissionPolicy    = "MutatingAdmissionPolicy"
	MutatingAdmissionWebhook   = "MutatingAdmissionWebhook"
	ValidatingAdmissionPolicy  = "ValidatingAdmissionPolicy"
	ValidatingAdmissionWebhook = "ValidatingAdmissionWebhook"
)

// OfExtensions has the plugins of an extension server. The other plugins concern built-in kinds, or change objects of
// the host.
var OfExtensions = []string{
	NamespaceLifecycle, "OwnerReferencesPermissionEnforcement",
	MutatingAdmissionPolicy, MutatingAdmissionWebhook, ValidatingAdmissionPolicy, ValidatingAdmissionWebhook,
}

// Selection has the values of --enable-admission-plugins, --disable-admission-plugins and --admission-control. A nil
// value means that the flag is not set. --admission-control, if set, names all enabled plugins.
type Selection struct {
	Enable, Disable []string
	Control         []string
	// Of has the plugins that this kind of server can have; nil: all plugins.
	Of []string
}

// Enabled returns the names of the enabled plugins in order. Errors have kube-apiserver's texts.
func Enabled(selection Selection) ([]string, error) {
	if err := validate(selection); err != nil {
		return nil, err
	}
	var names []string
	for _, p := range order {
		if selection.has(p) && selection.enables(p) {
			names = append(names, p.name)
		}
	}
	return names, nil
}

// has reports whether this kind of server can have a plugin.
func (s Selection) has(p place) bool { return s.Of == nil || slices.Contains(s.Of, p.name) }

func (s Selection) enables(p place) bool {
	if s.Control != nil {
		return slices.Contains(s.Control, p.name)
	}
	return slices.Contains(s.Enable, p.name) || p.on && !slices.Contains(s.Disable, p.name)
}

func validate(s Selection) error {
	var errs []error
	if s.Control != nil && (s.Enable != nil || s.Disable != nil) {
		errs = append(errs,
			errors.New("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive"))
	}
	known := map[string]bool{}
	for _, p := range order {
		known[p.name] = s.has(p)
	}
	for _, flag := range []struct {
		name  string
		names []string
	}{{"admission-control", s.Control}, {"enable-admission-plugins", s.Enable}, {"disable-admission-plugins", s.Disable}} {
		for _, name := range flag.names {
			if !known[name] {
				errs = append(errs, fmt.Errorf("%s plugin %q is unknown", flag.name, name))
			}
		}
	}
	if both := overlap(s.Enable, s.Disable); len(both) > 0 {
		errs = append(errs,
			fmt.Errorf("[%s] in enable-admission-plugins and disable-admission-plugins overlapped", strings.Join(both, " ")))
	}
	return errors.Join(errs...)
}

// overlap returns the names that are in both lists, sorted.
func overlap(a, b []string) []string {
	both := map[string]bool{}
	for _, name := range a {
		if slices.Contains(b, name) {
			both[name] = true
		}
	}
	return slices.Sorted(maps.Keys(both))
}
