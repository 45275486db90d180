package desired

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

// HostSecret is the suffix of the Secret with the kubeconfig for the host of a cluster in mode Extension.
const HostSecret = "host"

const (
	// extension is the value of RegistrationLabel on objects in the host.
	extension = "extension"

	// hostVersionPriority is the versionPriority that API servers give to the versions of their own
	// CustomResourceDefinitions. Versions of the extension server have at least the same: clients must not prefer a
	// version that `quorate extension move` adds to the host.
	hostVersionPriority = 100

	hostKubeconfig = "host.kubeconfig"
	hostToken      = "host-token"
	// tokenLifetime is the lifetime of the token in seconds. The kubelet renews the token after 80% of it.
	tokenLifetime = 3600
)

// Roles in the host that API servers in mode Extension need. ExtensionRole is defined in config/rbac/extension.
const (
	ExtensionRole  = "quorate-extension"
	delegatorRole  = "system:auth-delegator"
	readerRole     = "extension-apiserver-authentication-reader"
	readerRoleHome = "kube-system"
)

// ExtensionSelector selects the objects of a cluster in its host that have no owner reference.
func ExtensionSelector(cluster *v1alpha1.ApiServerCluster) labels.Set {
	return labels.Set{RegistrationLabel: extension, ClusterLabel: cluster.Name, NamespaceLabel: cluster.Namespace}
}

// HostAPIServices returns the APIServices in the host for a cluster in mode Extension. caBundle is empty if clients
// already trust the issuer of the serving certificate.
func HostAPIServices(cluster *v1alpha1.ApiServerCluster, caBundle []byte) []*apiregistrationv1.APIService {
	var services []*apiregistrationv1.APIService
	for _, group := range cluster.Spec.Extension.Groups {
		for i, version := range group.Versions {
			services = append(services, &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{
					Name: APIServiceName(group.Name, version), Labels: merged(Labels(cluster), ExtensionSelector(cluster)),
				},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: group.Name, Version: version,
					GroupPriorityMinimum: cmp.Or(group.GroupPriorityMinimum, defaultGroupPriority),
					VersionPriority:      int32(hostVersionPriority + len(group.Versions) - 1 - i),
					Service: &apiregistrationv1.ServiceReference{
						Namespace: cluster.Namespace, Name: cluster.Name, Port: ptr.To[int32](SecurePort),
					},
					CABundle: caBundle,
				},
			})
		}
	}
	return services
}

// ServiceAccountName returns the name of the ServiceAccount with which API servers in mode Extension access their host.
func ServiceAccountName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name }

// HostServiceAccount returns the ServiceAccount with which API servers access their host.
func HostServiceAccount(cluster *v1alpha1.ApiServerCluster) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Name: ServiceAccountName(cluster), Namespace: cluster.Namespace, Labels: Labels(cluster),
		},
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// HostClusterRoleBindings returns the bindings for the whole host. They permit the API servers to create TokenReviews
// and SubjectAccessReviews, and to read namespaces, webhooks and policies.
func HostClusterRoleBindings(cluster *v1alpha1.ApiServerCluster) []*rbacv1.ClusterRoleBinding {
	var bindings []*rbacv1.ClusterRoleBinding
	for _, binding := range []struct{ suffix, role string }{
		{"auth-delegator", delegatorRole}, {"host-reader", ExtensionRole},
	} {
		bindings = append(bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: hostMeta(cluster, binding.suffix),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   hostSubjects(cluster),
		})
	}
	return bindings
}

// HostRoleBinding returns the binding that permits the API servers to read the ConfigMap
// extension-apiserver-authentication of the host.
func HostRoleBinding(cluster *v1alpha1.ApiServerCluster) *rbacv1.RoleBinding {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: hostMeta(cluster, "authentication-reader"),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: readerRole},
		Subjects:   hostSubjects(cluster),
	}
	binding.Namespace = readerRoleHome
	return binding
}

func hostMeta(cluster *v1alpha1.ApiServerCluster, suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:   strings.Join([]string{"quorate", cluster.Namespace, cluster.Name, suffix}, ":"),
		Labels: merged(Labels(cluster), ExtensionSelector(cluster)),
	}
}

func hostSubjects(cluster *v1alpha1.ApiServerCluster) []rbacv1.Subject {
	return []rbacv1.Subject{{
		Kind: rbacv1.ServiceAccountKind, Namespace: cluster.Namespace, Name: ServiceAccountName(cluster),
	}}
}

// HostKubeconfig returns the Secret with the kubeconfig for the host. It contains no credentials, only the path of the
// token, which the kubelet projects and refreshes.
func HostKubeconfig(cluster *v1alpha1.ApiServerCluster, server string, trusted []byte) (*corev1.Secret, error) {
	text, err := yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "host",
		Clusters: []clientcmd.NamedCluster{{
			Name: "host", Cluster: clientcmd.Cluster{Server: server, CertificateAuthorityData: trusted},
		}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: "host", AuthInfo: clientcmd.AuthInfo{TokenFile: hostToken}}},
		Contexts:  []clientcmd.NamedContext{{Name: "host", Context: clientcmd.Context{Cluster: "host", AuthInfo: "host"}}},
	})
	if err != nil {
		return nil, err
	}
	return secret(cluster, HostSecret, corev1.SecretTypeOpaque, map[string][]byte{KubeconfigKey: text}), nil
}

// setExtension configures the delegation to the host: the front proxy and client authority that the host publishes,
// TokenReviews for authentication, and SubjectAccessReviews for authorization. API servers also start while the host is
// unavailable, because the host may depend on them.
func setExtension(c *config.Config, cluster *v1alpha1.ApiServerCluster) {
	c.Extension.Groups = extensionGroups(cluster)
	c.Extension.Kubeconfig, c.Extension.TolerateLookupFailure = mounted(hostKubeconfig), true
}

// extensionGroups returns the sorted groups that a cluster in mode Extension serves, or nil in other modes.
func extensionGroups(cluster *v1alpha1.ApiServerCluster) []string {
	if !cluster.IsExtension() {
		return nil
	}
	groups := make([]string, 0, len(cluster.Spec.Extension.Groups))
	for _, group := range cluster.Spec.Extension.Groups {
		groups = append(groups, group.Name)
	}
	slices.Sort(groups)
	return groups
}

// hostSources returns the files for access to the host, as sources of a projected volume.
func hostSources(cluster *v1alpha1.ApiServerCluster) []corev1.VolumeProjection {
	return []corev1.VolumeProjection{
		source(SecretName(cluster, HostSecret), item(KubeconfigKey, hostKubeconfig)),
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Path: hostToken, ExpirationSeconds: ptr.To[int64](tokenLifetime),
		}},
	}
}

// validateExtension returns the errors in spec.mode and spec.extension.
func validateExtension(cluster *v1alpha1.ApiServerCluster) error {
	groups := cluster.Spec.Extension.Groups
	switch {
	case cluster.Spec.Mode != "" && cluster.Spec.Mode != v1alpha1.ModeCluster && !cluster.IsExtension():
		return fmt.Errorf("spec.mode %q must be Cluster or Extension", cluster.Spec.Mode)
	case !cluster.IsExtension() && len(groups) > 0:
		return errors.New("spec.extension.groups needs spec.mode Extension")
	case !cluster.IsExtension():
		return nil
	case len(groups) == 0:
		return errors.New("spec.mode Extension needs spec.extension.groups")
	case len(cluster.Spec.Aggregation.APIServices) > 0:
		return errors.New("spec.aggregation.apiServices cannot be used with spec.mode Extension, which serves no APIServices")
	}
	var errs []error
	for _, group := range groups {
		if len(validation.IsDNS1123Subdomain(group.Name)) > 0 || !strings.Contains(group.Name, ".") {
			errs = append(errs, fmt.Errorf("spec.extension.groups: %q must be a DNS subdomain with a dot", group.Name))
		}
		if len(group.Versions) == 0 {
			errs = append(errs, fmt.Errorf("spec.extension.groups: %s needs versions", group.Name))
		}
	}
	return errors.Join(errs...)
}
