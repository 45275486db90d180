package desired

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

const (
	// user is the UID and GID of the processes: nonroot in the image.
	user = 65532
	// memberStopTime is the time that a member needs to move its leadership and to close its database.
	memberStopTime = 12 * time.Second
	// maxTerminationGrace limits for how long a terminating replica may delay a rollout or a drain of a node.
	maxTerminationGrace = time.Hour
	// startupTimeout is the time that a replica may take to start, including reading a large database or receiving a
	// snapshot.
	startupTimeout = 600 // seconds
)

// Pod returns the pod of a replica. certificateHash is the hash of the files that the replica reloads, for an
// annotation: updating the annotation of a running pod makes the kubelet refresh the mounted files without delay.
func Pod(
	cluster *v1alpha1.ApiServerCluster, image string, replica Replica, certificateHash string,
) (*corev1.Pod, error) {
	configuration, err := configuration(cluster, replica, podIP, literal(cluster.Spec.ExtraArgs))
	if err != nil {
		return nil, err
	}
	hashes := HashesOf(cluster, image, replica.Configuration)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: replica.Name, Namespace: cluster.Namespace,
			Labels:      merged(Labels(cluster), map[string]string{RoleLabel: RoleServer}),
			Annotations: map[string]string{ServerHashAnnotation: hashes.Server, CertificateHashAnnotation: certificateHash},
		},
		Spec: podSpec(cluster, replica, terminationGrace(configuration)),
	}
	if replica.AuthorityHash != "" {
		pod.Annotations[AuthorityHashAnnotation] = replica.AuthorityHash
	}
	if replica.Member {
		pod.Labels[RoleLabel], pod.Annotations[EtcdHashAnnotation] = RoleMember, hashes.Etcd
		pod.Spec.Hostname, pod.Spec.Subdomain = replica.Name, MembersService(cluster)
	} else if !cluster.ExternalEtcd() {
		pod.Annotations[EndpointsAnnotation] = endpointNames(replica.Endpoints)
	}
	args := append([]string{"apiserver"}, configuration.Args()...)
	if cluster.IsExtension() {
		pod.Spec.ServiceAccountName = ServiceAccountName(cluster)
	}
	pod.Spec.Containers = []corev1.Container{container(cluster, image, replica, args)}
	extra, mounts := configurationVolumes(cluster, replica.Configuration)
	pod.Spec.Volumes = append(pod.Spec.Volumes, extra...)
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, mounts...)
	return patched(pod, cluster.Spec.Patches.Pod)
}

// terminationGrace returns the duration of a graceful termination, after which the kubelet kills the replica. Each
// summand is capped, so that the sum cannot overflow.
func terminationGrace(c *config.Config) time.Duration {
	grace := memberStopTime
	for _, part := range []time.Duration{
		c.Serving.ShutdownDelay, c.Serving.RequestTimeout, c.Serving.ShutdownWatchTerminationGrace,
	} {
		grace += min(part, 2*maxTerminationGrace)
	}
	return grace
}

func podSpec(cluster *v1alpha1.ApiServerCluster, replica Replica, grace time.Duration) corev1.PodSpec {
	scheduling := cluster.Spec.Scheduling
	return corev1.PodSpec{
		Volumes:                       volumes(cluster, replica),
		RestartPolicy:                 corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: ptr.To(int64(grace.Seconds())),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		ImagePullSecrets:              cluster.Spec.ImagePullSecrets,
		NodeSelector:                  scheduling.NodeSelector,
		Tolerations:                   scheduling.Tolerations,
		TopologySpreadConstraints:     scheduling.TopologySpreadConstraints,
		PriorityClassName:             scheduling.PriorityClassName,
		Affinity:                      affinity(cluster),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](user), RunAsGroup: ptr.To[int64](user),
			FSGroup:             ptr.To[int64](user),
			FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// affinity returns the affinity in the spec, or a preference for nodes and zones without another replica. It is a
// preference, because a hosting cluster may have fewer nodes than replicas.
func affinity(cluster *v1alpha1.ApiServerCluster) *corev1.Affinity {
	if cluster.Spec.Scheduling.Affinity != nil {
		return cluster.Spec.Scheduling.Affinity
	}
	return spread(Selector(cluster))
}

// spread returns a preference for nodes and zones without another pod that has the labels.
func spread(labels map[string]string) *corev1.Affinity {
	selector := &metav1.LabelSelector{MatchLabels: labels}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: corev1.LabelHostname}},
			{
				Weight: 50, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: corev1.LabelTopologyZone},
			},
		},
	}}
}

func container(cluster *v1alpha1.ApiServerCluster, image string, replica Replica, args []string) corev1.Container {
	c := corev1.Container{
		Name: ServerContainer, Image: image, ImagePullPolicy: pullPolicy(cluster), Args: args,
		Env:             environment(cluster, replica),
		Ports:           []corev1.ContainerPort{{Name: "https", ContainerPort: SecurePort, Protocol: corev1.ProtocolTCP}},
		Resources:       resources(cluster, replica.Configuration.quota(cluster)),
		VolumeMounts:    mounts(replica),
		SecurityContext: restricted(),
		// The probes exclude etcd, because a restart of API servers does not restore its quorum.
		StartupProbe:  probe("/livez?exclude=etcd", 1, startupTimeout),
		LivenessProbe: probe("/livez?exclude=etcd", 10, 6),
		// A replica that does not respond gets new connections until it is no longer ready, so this probe is fast.
		ReadinessProbe:           readinessProbe(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if replica.Member {
		c.Ports = append(c.Ports,
			corev1.ContainerPort{Name: "client", ContainerPort: ClientPort, Protocol: corev1.ProtocolTCP},
			corev1.ContainerPort{Name: "peer", ContainerPort: PeerPort, Protocol: corev1.ProtocolTCP})
	}
	return c
}

// restricted returns the fields of a container that the Pod Security Standard "restricted" requires. podSpec sets the
// fields of the pod.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func podAddress() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"},
	}}
}

// environment returns the variables of a replica: the address of the pod, which arguments refer to; the version that
// the cluster has run, because the API server refuses to downgrade it or to skip a minor version; and the record of a
// member. Images of releases that do not know a variable ignore it.
func environment(cluster *v1alpha1.ApiServerCluster, replica Replica) []corev1.EnvVar {
	variables := []corev1.EnvVar{podAddress()}
	if version := previousVersion(cluster); version != "" {
		variables = append(variables, corev1.EnvVar{Name: config.PreviousVersionVariable, Value: version})
	}
	if replica.Member {
		variables = append(variables, corev1.EnvVar{Name: config.MemberRecordVariable, Value: replica.record()})
	}
	return variables
}

// emulatedVersion is the flag of spec.extraArgs that holds an upgrade back.
const emulatedVersion = "emulated-version"

// previousVersion returns the Kubernetes version below which the cluster must not go back. If the spec emulates a
// version, that is the newest version that the API servers have served, so that an image of that version can be set
// again. Without an emulated version it is the version of the API servers, even if no replica without the flag has
// been observed yet.
func previousVersion(cluster *v1alpha1.ApiServerCluster) string {
	if cluster.Spec.ExtraArgs[emulatedVersion] != "" && cluster.Status.EffectiveVersion != "" {
		return cluster.Status.EffectiveVersion
	}
	return cluster.Status.Version
}

// record returns the value of config.MemberRecordVariable.
func (r Replica) record() string {
	record := r.Record
	record.Directory = recordDirectory
	text, err := json.Marshal(record) // encoding a plain struct cannot fail
	if err != nil {
		panic(err)
	}
	return string(text)
}

// pullPolicy returns the policy in the spec, or IfNotPresent. Unlike in Kubernetes, that is also the default for the
// tag latest: a replica must be able to restart while the registry is unavailable, and a restart must not change its
// version.
func pullPolicy(cluster *v1alpha1.ApiServerCluster) corev1.PullPolicy {
	return cmp.Or(cluster.Spec.ImagePullPolicy, corev1.PullIfNotPresent)
}

// baseMemory is the memory that a replica needs in addition to its objects: 105 MiB when it is idle, up to 64 MiB for
// encodings, and the memory of requests in flight, which the server bounds by its limit.
const baseMemory = 512 << 20

// resources returns the resources of a replica. If the spec has none, the memory limit follows from the quota of the
// etcd database: a full database fits into memory together with baseMemory. docs/performance.md derives the formula.
// The size of an external etcd is unknown, so its API servers have no limit.
func resources(cluster *v1alpha1.ApiServerCluster, quota int64) corev1.ResourceRequirements {
	if len(cluster.Spec.Resources.Requests) > 0 || len(cluster.Spec.Resources.Limits) > 0 {
		return cluster.Spec.Resources
	}
	required := corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
	}}
	if cluster.Spec.Etcd.External == nil {
		const unit = 1 << 20
		memory := (baseMemory + quota + unit - 1) / unit * unit
		required.Limits = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	}
	return required
}

func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: intstr.FromInt32(SecurePort), Scheme: corev1.URISchemeHTTPS,
		}},
		PeriodSeconds: period, TimeoutSeconds: 10, FailureThreshold: failures,
	}
}

// readinessProbe returns a probe that fails within nine seconds if a replica does not respond at all.
func readinessProbe() *corev1.Probe {
	p := probe("/readyz", 1, 3)
	p.TimeoutSeconds = 2
	return p
}

// endpointNames returns the names of the members in client URLs, separated by commas.
func endpointNames(urls []string) string {
	names := make([]string, 0, len(urls))
	for _, url := range urls {
		name, _, _ := strings.Cut(strings.TrimPrefix(url, "https://"), ".")
		names = append(names, name)
	}
	return strings.Join(names, ",")
}
