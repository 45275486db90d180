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

// HostSecret is the suffix of the Secret with the kubeconfig of the host, in mode Extension.
const HostSecret = "host"

const (
	// extension is the value of RegistrationLabel of objects in the host.
	extension = "extension"

	// hostVersionPriority is the versionPriority of the host's own CustomResourceDefinitions. Clients must not prefer
	// a version that `quorate extension move` adds to them over a version of the extension server.
	hostVersionPriority = 100

	hostKubeconfig = "host.kubeconfig"
	hostToken      = "host-token"
	// tokenLifetime in seconds. The kubelet renews the token when 80% of it has passed.
	tokenLifetime = 3600
)

// Roles of the host that the API servers need in mode Extension. ExtensionRole is in config/rbac/extension.
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

// HostAPIServices returns the APIServices of the host for a cluster in mode Extension. They have no caBundle if
// clients already trust the issuer of the serving certificate.
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

// ServiceAccountName returns the name of the service account with which the API servers access the host.
func ServiceAccountName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name }

// HostServiceAccount returns the identity of the API servers in the host.
func HostServiceAccount(cluster *v1alpha1.ApiServerCluster) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Name: ServiceAccountName(cluster), Namespace: cluster.Namespace, Labels: Labels(cluster),
		},
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// HostClusterRoleBindings returns the bindings of the API servers in the whole host: they create TokenReviews and
// SubjectAccessReviews, and read namespaces, webhooks and policies.
func HostClusterRoleBindings(cluster *v1alpha1.ApiServerCluster) []*rbacv1.ClusterRoleBinding {
	var bindings []*rbacv1.ClusterRoleBinding
	for _, one := range []struct{ suffix, role string }{{"auth-delegator", delegatorRole}, {"host-reader", ExtensionRole}} {
		bindings = append(bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: hostMeta(cluster, one.suffix),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: one.role},
			Subjects:   hostSubjects(cluster),
		})
	}
	return bindings
}

// HostRoleBinding returns the binding that allows reading the authorities and header names of the host's front proxy.
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

// HostKubeconfig returns the Secret with the kubeconfig of the host for the API servers. It contains no credentials:
// the token is in a separate file that the kubelet refreshes.
func HostKubeconfig(cluster *v1alpha1.ApiServerCluster, server string, trusted []byte) (*corev1.Secret, error) {
	text, err := yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "host",
		Clusters:  []clientcmd.NamedCluster{{Name: "host", Cluster: clientcmd.Cluster{Server: server, CertificateAuthorityData: trusted}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: "host", AuthInfo: clientcmd.AuthInfo{TokenFile: hostToken}}},
		Contexts:  []clientcmd.NamedContext{{Name: "host", Context: clientcmd.Context{Cluster: "host", AuthInfo: "host"}}},
	})
	if err != nil {
		return nil, err
	}
	return secret(cluster, HostSecret, corev1.SecretTypeOpaque, map[string][]byte{KubeconfigKey: text}), nil
}

// setExtension configures delegation to the host: its front proxy and client authority as it publishes them,
// TokenReviews for authentication, SubjectAccessReviews for authorization. The members also start while the host is
// unavailable, because the host may itself depend on them.
func setExtension(c *config.Config, cluster *v1alpha1.ApiServerCluster) {
	c.Extension.Groups = extensionGroups(cluster)
	c.Extension.Kubeconfig, c.Extension.TolerateLookupFailure = mounted(hostKubeconfig), true
}

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

// hostSources are the files for access to the host.
func hostSources(cluster *v1alpha1.ApiServerCluster) []corev1.VolumeProjection {
	return []corev1.VolumeProjection{
		source(SecretName(cluster, HostSecret), item(KubeconfigKey, hostKubeconfig)),
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Path: hostToken, ExpirationSeconds: ptr.To[int64](tokenLifetime),
		}},
	}
}

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
