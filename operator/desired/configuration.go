package desired

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/encryption"
)

const (
	// ConfigurationDirectory is the directory in pods that has one subdirectory for each part of the configuration.
	ConfigurationDirectory = "/etc/quorate/configuration"
	auditLogDirectory      = "/var/log/quorate"
	defaultKey             = "config.yaml"
	kmsTimeout             = 3 * time.Second // default in EncryptionConfiguration

	encryptionPart = "encryption"
	encryptionKey  = encryptionPart + "." + defaultKey // key in the Secret ConfigurationSecret
)

// Suffixes and keys of the Secrets with the configuration.
const (
	// ConfigurationSecret has the last valid files of all parts. Pods mount the files that API servers reload from it.
	ConfigurationSecret = "configuration"
	// EncryptionSecret has the state of the encryption; see package encryption.
	EncryptionSecret = "encryption-keys"
	// EncryptionStateKey is the key of the state in the Secret EncryptionSecret.
	EncryptionStateKey = "state.json"
	// RetiredKeysKey is the key, in the Secret EncryptionSecret, of retired schemes that backups need.
	RetiredKeysKey = "retired.json"
)

// ConfigurationLabel is the label of Secrets with files that API servers read only when they start. The name of such a
// Secret contains the hash of its content, so that a pod that restarts reads the files that it was created for.
const ConfigurationLabel = "quorate.dev/configuration"

// Part is a part of the configuration that the user provides as files.
type Part struct {
	Name     string
	Files    v1alpha1.ConfigurationFiles
	Reloaded bool // API servers reload the main file when it changes
}

// Main returns the name of the part's main file.
func (p Part) Main() string { return cmp.Or(p.Files.Key, defaultKey) }

func (p Part) path(file string) string { return path.Join(ConfigurationDirectory, p.Name, file) }

// Parts returns the parts of the configuration that the spec has.
func Parts(cluster *v1alpha1.ApiServerCluster) []Part {
	spec := &cluster.Spec
	var parts []Part
	if spec.Audit != nil {
		parts = append(parts, Part{Name: "audit", Files: spec.Audit.ConfigurationFiles})
	}
	for _, part := range []struct {
		name     string
		files    *v1alpha1.ConfigurationFiles
		reloaded bool
	}{
		{"authentication", spec.Authentication, true}, {"authorization", spec.Authorization, true},
		{"admission", spec.Admission, false}, {"egress", spec.Egress, false}, {"tracing", spec.Tracing, false},
	} {
		if part.files != nil {
			parts = append(parts, Part{Name: part.name, Files: *part.files, Reloaded: part.reloaded})
		}
	}
	return parts
}

// Configuration is the validated content of the files to which a cluster's spec refers, and the inputs of pods that are
// derived from them.
type Configuration struct {
	Files map[string][]byte // files of all parts, by FileKey
	// Static describes the settings in the files that need a restart; see validation.Check.
	Static string
	// Encryption is the EncryptionConfiguration; nil: API servers have none.
	Encryption []byte
	Sockets    []Socket
	// VolumeSize is the requested size of the smallest volume of a member in bytes; 0 means the size in the spec.
	VolumeSize int64
}

// Socket is a directory of the node that contains the socket of a KMS plugin.
type Socket struct {
	HostPath  string `json:"hostPath"`
	MountPath string `json:"mountPath"`
}

// Sockets returns the directories that the providers of an encryption state need.
func Sockets(state encryption.State) []Socket {
	var sockets []Socket
	for _, scheme := range []*encryption.Scheme{&state.Current, state.Next, state.Previous} {
		if scheme == nil || scheme.Provider.HostPath == "" {
			continue
		}
		socket := Socket{scheme.Provider.HostPath, path.Dir(strings.TrimPrefix(scheme.Provider.Endpoint, "unix://"))}
		if !slices.ContainsFunc(sockets, func(other Socket) bool { return other.MountPath == socket.MountPath }) {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}

// FileKey returns the key of a file in Configuration.Files and in the Secrets.
func FileKey(part, name string) string { return part + "." + name }

// staticFiles returns the files that API servers read only when they start.
func (c Configuration) staticFiles(cluster *v1alpha1.ApiServerCluster) map[string][]byte {
	files := map[string][]byte{}
	for _, part := range Parts(cluster) {
		for key, content := range c.Files {
			name, file, _ := strings.Cut(key, ".")
			if name == part.Name && !(part.Reloaded && file == part.Main()) {
				files[key] = content
			}
		}
	}
	return files
}

// reloadedKeys returns the keys that pods mount from the Secret ConfigurationSecret.
func (c Configuration) reloadedKeys(cluster *v1alpha1.ApiServerCluster) []string {
	var keys []string
	for _, part := range Parts(cluster) {
		if part.Reloaded {
			keys = append(keys, FileKey(part.Name, part.Main()))
		}
	}
	if c.Encryption != nil {
		keys = append(keys, encryptionKey)
	}
	return keys
}

// StaticSecret returns the immutable Secret with the files that API servers read only when they start, or nil if there
// are none.
func (c Configuration) StaticSecret(cluster *v1alpha1.ApiServerCluster) *corev1.Secret {
	files := c.staticFiles(cluster)
	if len(files) == 0 {
		return nil
	}
	static := secret(cluster, ConfigurationSecret+"-"+filesHash(files), corev1.SecretTypeOpaque, files)
	static.Labels[ConfigurationLabel] = "static"
	static.Immutable = ptr.To(true)
	return static
}

// Secret returns the Secret ConfigurationSecret: the last valid files of all parts, and the files that API servers
// reload. It keeps keys of the current Secret that a pod mounts, because without them the kubelet would not restart the
// containers of the pod.
func (c Configuration) Secret(
	cluster *v1alpha1.ApiServerCluster, current map[string][]byte, pods []corev1.Pod,
) *corev1.Secret {
	data := maps.Clone(c.Files)
	if data == nil {
		data = map[string][]byte{}
	}
	if c.Encryption != nil {
		data[encryptionKey] = c.Encryption
	}
	name := SecretName(cluster, ConfigurationSecret)
	for i := range pods {
		for _, key := range mountedKeys(&pods[i], name) {
			if _, ok := data[key]; !ok && current[key] != nil {
				data[key] = current[key]
			}
		}
	}
	return secret(cluster, ConfigurationSecret, corev1.SecretTypeOpaque, data)
}

// mountedKeys returns the keys of a Secret that the configuration volume of a pod mounts.
func mountedKeys(pod *corev1.Pod, name string) (keys []string) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name != configurationVolume || volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret == nil || source.Secret.Name != name {
				continue
			}
			for _, item := range source.Secret.Items {
				keys = append(keys, item.Key)
			}
		}
	}
	return keys
}

// MountsConfiguration reports whether a pod mounts the Secret with this name, which contains files that API servers
// read only when they start.
func MountsConfiguration(pod *corev1.Pod, name string) bool { return len(mountedKeys(pod, name)) > 0 }

// MountsEncryption reports whether a pod mounts an EncryptionConfiguration.
func MountsEncryption(pod *corev1.Pod) bool {
	return slices.ContainsFunc(mountedKeys(pod, pod.Labels[ClusterLabel]+"-"+ConfigurationSecret), func(key string) bool {
		return key == encryptionKey
	})
}

// HasEncryption reports whether the Secret ConfigurationSecret contains an EncryptionConfiguration.
func HasEncryption(files *corev1.Secret) bool { return len(files.Data[encryptionKey]) > 0 }

// MissingKeys returns the names of the keys that an encryption state lacks although the EncryptionConfiguration in the
// Secret ConfigurationSecret encrypts with them. If all is true, the result includes keys that only decrypt.
func MissingKeys(state encryption.State, files *corev1.Secret, all bool) []string {
	return state.MissingKeys(files.Data[encryptionKey], all)
}

// ReloadHash returns the hash of the files that API servers reload, or "" if there are none.
func (c Configuration) ReloadHash(cluster *v1alpha1.ApiServerCluster) string {
	files := map[string][]byte{}
	for _, key := range c.reloadedKeys(cluster) {
		files[key] = c.Files[key]
	}
	if c.Encryption != nil {
		files[encryptionKey] = c.Encryption
	}
	if len(files) == 0 {
		return ""
	}
	return filesHash(files)
}

// startHash returns the hash of the configuration that API servers read only when they start, or "" if there is none.
// It is part of serverInputs.
func (c Configuration) startHash(cluster *v1alpha1.ApiServerCluster) string {
	parts := Parts(cluster)
	if len(parts) == 0 {
		return ""
	}
	inputs := struct {
		Parts  []string
		Audit  v1alpha1.AuditLog
		Hook   string
		Files  string
		Static string
	}{Files: filesHash(c.staticFiles(cluster)), Static: c.Static}
	for _, part := range parts {
		inputs.Parts = append(inputs.Parts, FileKey(part.Name, part.Main()))
	}
	if audit := cluster.Spec.Audit; audit != nil {
		inputs.Audit, inputs.Hook = auditLog(audit), audit.WebhookKey
	}
	return hash(inputs)
}

func filesHash(files map[string][]byte) string {
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(files)) {
		content := sha256.Sum256(files[key])
		sum.Write([]byte(key + "\x00"))
		sum.Write(content[:])
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

func auditLog(audit *v1alpha1.Audit) v1alpha1.AuditLog {
	return cmp.Or(audit.Log, v1alpha1.AuditStdout)
}

// setParts sets the flags that refer to files of the configuration.
func setParts(c *config.Config, cluster *v1alpha1.ApiServerCluster, encrypted bool) {
	for _, part := range Parts(cluster) {
		file := part.path(part.Main())
		switch part.Name {
		case "audit":
			setAudit(c, cluster.Spec.Audit, part)
		case "authentication":
			c.Authentication.ConfigFile = file
		case "authorization":
			c.Authorization.ConfigFile, c.Authorization.Modes = file, config.Default().Authorization.Modes
		case "admission":
			c.Admission.ConfigFile = file
		case "egress":
			c.API.EgressSelectorFile = file
		case "tracing":
			c.Tracing.ConfigFile = file
		}
	}
	if encrypted {
		c.Etcd.EncryptionConfig = Part{Name: encryptionPart}.path(defaultKey)
		c.Etcd.ReloadEncryptionConfig = true
	}
}

func setAudit(c *config.Config, audit *v1alpha1.Audit, part Part) {
	c.Audit.PolicyFile = part.path(part.Main())
	switch auditLog(audit) {
	case v1alpha1.AuditStdout:
		c.Audit.Log.Path = "-"
	case v1alpha1.AuditFile:
		c.Audit.Log.Path = auditLogDirectory + "/audit.log"
	}
	if audit.WebhookKey != "" {
		c.Audit.Webhook.ConfigFile = part.path(audit.WebhookKey)
	}
}

// Names of volumes in the pod of a replica.
const (
	configurationVolume = "configuration"
	auditLogVolume      = "audit-log"
	socketVolumePrefix  = "kms-socket-"
)

// configurationVolumes returns the volumes of the configuration and their mounts.
func configurationVolumes(cluster *v1alpha1.ApiServerCluster, c Configuration) ([]corev1.Volume, []corev1.VolumeMount) {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	if sources := c.sources(cluster); len(sources) > 0 {
		volumes = append(volumes, corev1.Volume{Name: configurationVolume, VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: sources, DefaultMode: ptr.To[int32](0o440)},
		}})
		mounts = append(mounts, corev1.VolumeMount{
			Name: configurationVolume, MountPath: ConfigurationDirectory, ReadOnly: true,
		})
	}
	if audit := cluster.Spec.Audit; audit != nil && auditLog(audit) == v1alpha1.AuditFile {
		volumes = append(volumes, corev1.Volume{
			Name: auditLogVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
		mounts = append(mounts, corev1.VolumeMount{Name: auditLogVolume, MountPath: auditLogDirectory})
	}
	for i, socket := range c.Sockets {
		name := socketVolumePrefix + string(rune('0'+i))
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: socket.HostPath, Type: ptr.To(corev1.HostPathDirectory)},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: socket.MountPath})
	}
	return volumes, mounts
}

func (c Configuration) sources(cluster *v1alpha1.ApiServerCluster) []corev1.VolumeProjection {
	var sources []corev1.VolumeProjection
	if static := c.StaticSecret(cluster); static != nil {
		sources = append(sources, source(static.Name, items(slices.Sorted(maps.Keys(static.Data)))...))
	}
	if keys := c.reloadedKeys(cluster); len(keys) > 0 {
		sources = append(sources, source(SecretName(cluster, ConfigurationSecret), items(keys)...))
	}
	return sources
}

// items returns the paths of keys in a volume: each part is a directory.
func items(keys []string) []corev1.KeyToPath {
	var all []corev1.KeyToPath
	for _, key := range keys {
		part, file, _ := strings.Cut(key, ".")
		all = append(all, item(key, part+"/"+file))
	}
	return all
}

// EncryptionScheme returns the encryption scheme of the spec, without the keys that the operator creates.
func EncryptionScheme(cluster *v1alpha1.ApiServerCluster) encryption.Scheme {
	spec := cluster.Spec.Encryption
	if spec == nil {
		return encryption.Scheme{}
	}
	scheme := encryption.Scheme{Resources: slices.Sorted(slices.Values(spec.Resources))}
	if len(scheme.Resources) == 0 {
		scheme.Resources = []string{"secrets"}
	}
	scheme.Provider.Kind = string(cmp.Or(spec.Provider, v1alpha1.Secretbox))
	if kms := spec.KMS; kms != nil && spec.Provider == v1alpha1.KMSv2 {
		scheme.Provider.Name, scheme.Provider.Endpoint, scheme.Provider.HostPath = kms.Name, kms.Endpoint, kms.HostPath
		scheme.Provider.Timeout = kmsTimeout
		if kms.Timeout != nil {
			scheme.Provider.Timeout = kms.Timeout.Duration
		}
	}
	return scheme
}

// EncryptionKeys returns the Secret with the encryption state and the retired schemes.
func EncryptionKeys(
	cluster *v1alpha1.ApiServerCluster, state encryption.State, retired encryption.Retired,
) *corev1.Secret {
	data := map[string][]byte{EncryptionStateKey: state.Data()}
	if len(retired) > 0 {
		data[RetiredKeysKey] = retired.Data()
	}
	return secret(cluster, EncryptionSecret, corev1.SecretTypeOpaque, data)
}
