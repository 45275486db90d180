package desired

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

// Names of the companions. The name is the command, the user name without the prefix "system:", and the suffix of the
// objects.
const (
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

const (
	// CompanionLabel has the name of the cluster whose companion a pod is. The pod has no ClusterLabel, because the
	// Service of the cluster would select it.
	CompanionLabel = "quorate.dev/companion-of"
	// CompanionHashAnnotation has the hash of the inputs of a Deployment. The Deployment is updated only if the hash
	// differs, so that an upgrade of the operator that builds pods differently restarts no companion.
	CompanionHashAnnotation = "quorate.dev/companion-hash"

	// KubeletClientSecret is the suffix of the Secret with the certificate with which API servers connect to kubelets.
	KubeletClientSecret = "kubelet-client"

	companionDirectory = "/etc/kubernetes/companion"
	filesSuffix        = "-files"

	// minSigningDuration is the shortest validity of the certificates that the controller manager signs.
	minSigningDuration = 10 * time.Minute
)

// Companion is a component of the control plane that runs in addition to the API servers.
type Companion struct {
	Name string
	Spec *v1alpha1.Companion // nil: the companion does not run
	port int
	// livez and readyz are the paths of the liveness and the readiness probe.
	livez, readyz string
}

// Companions returns all companions, also those that do not run.
func Companions(cluster *v1alpha1.ApiServerCluster) []Companion {
	spec := cluster.Spec.Companions
	return []Companion{
		{Name: ControllerManager, Spec: spec.KubeControllerManager, port: 10257, livez: "/healthz", readyz: "/healthz"},
		{Name: Scheduler, Spec: spec.KubeScheduler, port: 10259, livez: "/livez", readyz: "/readyz"},
	}
}

// CompanionName returns the name of a companion's Deployment.
func CompanionName(cluster *v1alpha1.ApiServerCluster, companion string) string {
	return cluster.Name + "-" + companion
}

// CompanionSelector selects the pods of a companion.
func CompanionSelector(cluster *v1alpha1.ApiServerCluster, companion string) labels.Set {
	return labels.Set{CompanionLabel: cluster.Name, NameLabel: companion}
}

// companionLeaves returns the client certificates of the companions, and the API servers' client certificate for
// kubelets.
func companionLeaves(cluster *v1alpha1.ApiServerCluster) []Certificate {
	var leaves []Certificate
	for _, companion := range Companions(cluster) {
		if companion.Spec != nil {
			leaves = append(leaves, Certificate{companion.Name, ClientDomain, pki.Leaf{
				CommonName: "system:" + companion.Name, Client: true,
			}})
		}
	}
	if cluster.RunsControllerManager() {
		leaves = append(leaves, Certificate{KubeletClientSecret, ClientDomain, pki.Leaf{
			CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}, Client: true,
		}})
	}
	return leaves
}

// CompanionCredentials are the certificates of a cluster that its companions use: to connect to the API servers, and to
// sign certificates and tokens.
type CompanionCredentials struct {
	Trusted    []byte // PEM certificates that verify the API servers; empty: clients use the authorities of their system
	ServerName string // host for which companions verify the serving certificate
	Clients    pki.Bundle
	Keys       pki.Keys
}

// hash returns the hash of the credentials that companions read only when they start.
func (c CompanionCredentials) hash() string {
	return pki.Fingerprint(c.Trusted, []byte(c.ServerName), c.Clients.Signer.Certificate, c.Keys.Signer.Certificate)
}

// CompanionFiles returns the Secret with the files of a companion. The client certificate is in the Secret of the leaf
// and is mounted from there, because clients reload the files that a kubeconfig refers to. The service-account key has
// its own Secret, too.
func CompanionFiles(
	cluster *v1alpha1.ApiServerCluster, companion Companion, c CompanionCredentials,
) (*corev1.Secret, error) {
	name := "system:" + companion.Name
	kubeconfig, err := yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: cluster.Name,
		Clusters: []clientcmd.NamedCluster{{Name: cluster.Name, Cluster: clientcmd.Cluster{
			Server: Endpoint(cluster), TLSServerName: c.ServerName, CertificateAuthorityData: c.Trusted,
		}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: name, AuthInfo: clientcmd.AuthInfo{
			ClientCertificate: companionFile("client.crt"), ClientKey: companionFile("client.key"),
		}}},
		Contexts: []clientcmd.NamedContext{{
			Name: cluster.Name, Context: clientcmd.Context{Cluster: cluster.Name, AuthInfo: name},
		}},
	})
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{KubeconfigKey: kubeconfig}
	if companion.Name == ControllerManager {
		data["root-ca.crt"] = c.Trusted
		data["signer.crt"], data["signer.key"] = c.Clients.Signer.Certificate, c.Clients.Signer.Key
	}
	return secret(cluster, companion.Name+filesSuffix, corev1.SecretTypeOpaque, data), nil
}

func companionFile(name string) string { return companionDirectory + "/" + name }

// companionInputs is hashed instead of the Deployment. A field may be added if its zero value is omitted from the JSON,
// so that hashes stay the same.
type companionInputs struct {
	Companion        v1alpha1.Companion            `json:"companion"`
	Scheduling       v1alpha1.Scheduling           `json:"scheduling"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	Credentials      string                        `json:"credentials"`
	Overlap          time.Duration                 `json:"overlap"`
}

// CompanionDeployment returns the Deployment of a companion, whose Spec must not be nil.
func CompanionDeployment(
	cluster *v1alpha1.ApiServerCluster, companion Companion, c CompanionCredentials,
) *appsv1.Deployment {
	inputs := companionInputs{
		Companion: *companion.Spec, Scheduling: cluster.Spec.Scheduling, ImagePullSecrets: cluster.Spec.ImagePullSecrets,
		Credentials: c.hash(), Overlap: cluster.AuthorityOverlap(),
	}
	inputs.Companion.Replicas = nil
	selector := CompanionSelector(cluster, companion.Name)
	sum := hash(inputs)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: CompanionName(cluster, companion.Name), Namespace: cluster.Namespace, Labels: Labels(cluster),
			Annotations: map[string]string{CompanionHashAnnotation: sum},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(companion.Spec.ReplicaCount(cluster)),
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			// A new pod must be ready before a running one is stopped: its flags may be invalid.
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      merged(selector, map[string]string{"app.kubernetes.io/instance": cluster.Name}),
					Annotations: map[string]string{CompanionHashAnnotation: sum}, // a change of the files also restarts the pods
				},
				Spec: companionPod(cluster, companion, selector),
			},
		},
	}
}

func companionPod(cluster *v1alpha1.ApiServerCluster, companion Companion, selector map[string]string) corev1.PodSpec {
	pod := podSpec(cluster, Replica{}, 30*time.Second)
	pod.Volumes = []corev1.Volume{{
		Name: "files", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: companionSources(cluster, companion), DefaultMode: ptr.To[int32](0o440),
		}},
	}}
	if cluster.Spec.Scheduling.Affinity == nil {
		pod.Affinity = spread(selector)
	}
	pod.TopologySpreadConstraints = nil // the constraints in the spec select the API servers
	pod.Containers = []corev1.Container{{
		Name: companion.Name, Image: companion.Spec.Image, ImagePullPolicy: companionPullPolicy(companion.Spec),
		Command: []string{companion.Name}, Args: companionArguments(cluster, companion),
		Env: []corev1.EnvVar{podAddress()},
		Ports: []corev1.ContainerPort{{
			Name: "https", ContainerPort: int32(companion.port), Protocol: corev1.ProtocolTCP,
		}},
		Resources:       companionResources(companion.Spec),
		VolumeMounts:    []corev1.VolumeMount{{Name: "files", MountPath: companionDirectory, ReadOnly: true}},
		SecurityContext: restricted(),
		LivenessProbe:   companion.probe(companion.livez, 10, 8), ReadinessProbe: companion.probe(companion.readyz, 2, 3),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}
	return pod
}

func (c Companion) probe(path string, period, failures int32) *corev1.Probe {
	p := probe(path, period, failures)
	p.HTTPGet.Port = intstr.FromInt(c.port)
	return p
}

func companionSources(cluster *v1alpha1.ApiServerCluster, companion Companion) []corev1.VolumeProjection {
	files := []corev1.KeyToPath{item(KubeconfigKey, KubeconfigKey)}
	sources := []corev1.VolumeProjection{
		source(SecretName(cluster, companion.Name), item(corev1.TLSCertKey, "client.crt"),
			item(corev1.TLSPrivateKeyKey, "client.key")),
	}
	if companion.Name == ControllerManager {
		for _, name := range []string{"root-ca.crt", "signer.crt", "signer.key"} {
			files = append(files, item(name, name))
		}
		sources = append(sources,
			source(SecretName(cluster, ServiceAccountSecret), item(ServiceAccountPrivateKey, ServiceAccountPrivateKey)))
	}
	return append(sources, source(SecretName(cluster, companion.Name+filesSuffix), files...))
}

// companionArguments returns the flags of a companion, sorted by name.
func companionArguments(cluster *v1alpha1.ApiServerCluster, companion Companion) []string {
	kubeconfig := companionFile(KubeconfigKey)
	flags := map[string]string{
		"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
		"bind-address": podIP, "secure-port": strconv.Itoa(companion.port), "leader-elect": "true", "profiling": "false",
	}
	if companion.Name == ControllerManager {
		maps.Copy(flags, map[string]string{
			// bootstrapsigner signs cluster-info for joining nodes, and tokencleaner deletes expired bootstrap tokens.
			"controllers":                      "*,bootstrapsigner,tokencleaner",
			"use-service-account-credentials":  "true",
			"service-account-private-key-file": companionFile(ServiceAccountPrivateKey),
			"cluster-signing-cert-file":        companionFile("signer.crt"),
			"cluster-signing-key-file":         companionFile("signer.key"),
			"cluster-signing-duration":         signingDuration(cluster).String(),
			"root-ca-file":                     companionFile("root-ca.crt"),
		})
	}
	maps.Copy(flags, literal(companion.Spec.ExtraArgs))
	args := make([]string, 0, len(flags))
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		args = append(args, "--"+name+"="+flags[name])
	}
	return args
}

// signingDuration returns the validity of kubelets' certificates. It is at most the time for which a replaced authority
// stays trusted, so that each kubelet renews its certificate before the authority that has signed it is dropped.
func signingDuration(cluster *v1alpha1.ApiServerCluster) time.Duration {
	return max(min(cluster.AuthorityOverlap(), cluster.CertificateLifetime()), minSigningDuration)
}

func companionPullPolicy(spec *v1alpha1.Companion) corev1.PullPolicy {
	if spec.ImagePullPolicy != "" {
		return spec.ImagePullPolicy
	}
	return corev1.PullIfNotPresent
}

func companionResources(spec *v1alpha1.Companion) corev1.ResourceRequirements {
	if len(spec.Resources.Requests) > 0 || len(spec.Resources.Limits) > 0 {
		return spec.Resources
	}
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
	}}
}

// Flags that the extraArgs of a companion cannot set. The CEL rules of Companion.ExtraArgs contain the same lists.
var (
	companionFlagPattern   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	companionOperatorFlags = sets.New("authentication-kubeconfig", "authorization-kubeconfig", "bind-address", "cert-dir",
		"config", "help", "kubeconfig", "master", "permit-address-sharing", "permit-port-sharing", "secure-port",
		"use-service-account-credentials", "version", "write-config-to")
	companionOperatorPrefixes = []string{"leader-elect", "requestheader-"}
	companionFileSuffixes     = []string{"-file", "-dir", "-manifest"}
)

func companionFlagError(name string) error {
	switch {
	case !companionFlagPattern.MatchString(name):
		return fmt.Errorf("flag names have no leading dashes: %q", name)
	case companionOperatorFlags.Has(name),
		slices.ContainsFunc(companionOperatorPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
		return fmt.Errorf("%s %s", name, setByOperator)
	case slices.ContainsFunc(companionFileSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) }):
		return fmt.Errorf("%s is not available: it needs a file that the pod does not have", name)
	}
	return nil
}

func validateCompanions(cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	switch mode := cluster.Spec.Controllers; {
	case mode != "" && mode != v1alpha1.ControllersEmbedded && mode != v1alpha1.ControllersNone:
		errs = append(errs, fmt.Errorf("spec.controllers %q must be Embedded or None", mode))
	case mode != "" && cluster.IsExtension():
		errs = append(errs, errors.New("spec.controllers cannot be used with spec.mode Extension"))
	case mode == v1alpha1.ControllersEmbedded && cluster.RunsControllerManager():
		errs = append(errs, errors.New(
			"spec.controllers Embedded cannot be used with spec.companions.kubeControllerManager, which runs the same "+
				"controllers"))
	}
	for _, companion := range Companions(cluster) {
		switch {
		case companion.Spec == nil:
			continue
		case cluster.IsExtension():
			errs = append(errs, errors.New("spec.companions cannot be used with spec.mode Extension"))
		case companion.Spec.Image == "":
			errs = append(errs, fmt.Errorf("spec.companions: %s needs an image", companion.Name))
		}
		for _, name := range slices.Sorted(maps.Keys(companion.Spec.ExtraArgs)) {
			if err := companionFlagError(name); err != nil {
				errs = append(errs, fmt.Errorf("spec.companions: extraArgs of %s: %w", companion.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}
