package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/operator/api/v1alpha1"
)

// serverInputs and etcdInputs are hashed instead of the pod. They contain only fields that the user has specified, so
// that an upgrade of the operator that builds pods differently restarts no pod. A field may be added if its zero value
// is omitted from the JSON, which keeps the hashes of existing pods; TestPreviousRelease checks this.
type serverInputs struct {
	Image             string                        `json:"image"`
	ImagePullPolicy   corev1.PullPolicy             `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets  []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	Resources         corev1.ResourceRequirements   `json:"resources"`
	ExtraArgs         map[string]string             `json:"extraArgs,omitempty"`
	Scheduling        v1alpha1.Scheduling           `json:"scheduling"`
	External          *v1alpha1.ExternalEtcd        `json:"external,omitempty"`
	AggregatorRouting bool                          `json:"aggregatorRouting,omitempty"`
	ExtensionGroups   []string                      `json:"extensionGroups,omitempty"`
	Configuration     string                        `json:"configuration,omitempty"`
	Encryption        bool                          `json:"encryption,omitempty"`
	Sockets           []Socket                      `json:"sockets,omitempty"`
	Patch             *runtime.RawExtension         `json:"patch,omitempty"`
	NoControllers     bool                          `json:"noControllers,omitempty"`
	Nodes             bool                          `json:"nodes,omitempty"`
}

type etcdInputs struct {
	Quota     int64             `json:"quota"`
	ExtraArgs map[string]string `json:"extraArgs,omitempty"`
}

// Hashes identifies the spec from which a pod was created.
type Hashes struct {
	Server string // hash of the fields that affect every replica
	Etcd   string // hash of the fields that affect only members
}

// HashesOf returns the hashes of a spec. image is the image of new pods.
func HashesOf(cluster *v1alpha1.ApiServerCluster, image string, c Configuration) Hashes {
	server, etcd := map[string]string{}, map[string]string{}
	for name, value := range cluster.Spec.ExtraArgs {
		if memberFlag(name) {
			etcd[name] = value
		} else {
			server[name] = value
		}
	}
	spec := &cluster.Spec
	return Hashes{
		Server: hash(serverInputs{
			Image: image, ImagePullPolicy: spec.ImagePullPolicy, ImagePullSecrets: spec.ImagePullSecrets,
			Resources: spec.Resources, ExtraArgs: server, Scheduling: spec.Scheduling, External: spec.Etcd.External,
			AggregatorRouting: usesAggregatorRouting(cluster), ExtensionGroups: extensionGroups(cluster),
			Configuration: c.startHash(cluster), Encryption: c.Encryption != nil, Sockets: c.Sockets, Patch: spec.Patches.Pod,
			NoControllers: !cluster.IsExtension() && !cluster.EmbeddedControllers(), Nodes: cluster.RunsControllerManager(),
		}),
		Etcd: hash(etcdInputs{Quota: c.quota(cluster), ExtraArgs: etcd}),
	}
}

// memberFlag reports whether a flag affects only the embedded member.
func memberFlag(name string) bool {
	return slices.Contains([]string{"etcd-snapshot-count", "etcd-heartbeat-interval", "etcd-election-timeout"}, name)
}

func hash(value any) string {
	text, err := json.Marshal(value) // JSON has sorted map keys; encoding plain structs cannot fail
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Outdated reports whether a pod was created from a spec with other hashes. A server is also outdated if less than half
// of the present voters are among the members that it connects to.
func Outdated(pod *corev1.Pod, hashes Hashes, voters []string) bool {
	if pod.Annotations[ServerHashAnnotation] != hashes.Server {
		return true
	}
	if pod.Labels[RoleLabel] == RoleMember {
		return pod.Annotations[EtcdHashAnnotation] != hashes.Etcd
	}
	connected := strings.Split(pod.Annotations[EndpointsAnnotation], ",")
	matching := 0
	for _, voter := range voters {
		if slices.Contains(connected, voter) {
			matching++
		}
	}
	return 2*matching < len(voters)
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, labels := range all {
		maps.Copy(out, labels)
	}
	return out
}
