package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ConfigurationFiles names the ConfigMap and the Secret with the files of one part of the configuration. The operator
// validates the files as the API server does, copies them, and applies changes. If files are missing or invalid, the
// condition Degraded has the reason InvalidConfiguration, and the last valid files stay in use.
//
// +kubebuilder:validation:XValidation:rule="has(self.configMapRef) || has(self.secretRef)",message="configMapRef or secretRef is required"
type ConfigurationFiles struct {
	// ConfigMapRef names a ConfigMap of the same namespace. Each of its keys becomes a file. Default: none.
	// Example: {"name": "demo-audit"}.
	//
	// +optional
	ConfigMapRef *corev1.LocalObjectReference `json:"configMapRef,omitempty"`

	// SecretRef names a Secret of the same namespace with files that must be kept secret, such as kubeconfigs. Each of its
	// keys becomes a file in the same directory. Default: none. Example: {"name": "demo-webhook"}.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// Key is the name of the main file. It can refer to the others by their paths in the pod,
	// /etc/quorate/configuration/<part>/<key>. Default: config.yaml. Example: policy.yaml.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// Audit configures the audit log. Its main file is a Policy of audit.k8s.io/v1.
type Audit struct {
	ConfigurationFiles `json:",inline"`

	// Log is the destination of the events. Stdout: the container's standard output, which the node's log collector reads.
	// File: /var/log/quorate/audit.log in the volume audit-log, an emptyDir that a sidecar of spec.patches can mount; its
	// limits are the flags audit-log-max* of extraArgs. None: only the webhook. A change restarts the pods one at a time.
	// Default: Stdout. Example: File.
	//
	// +kubebuilder:default=Stdout
	// +kubebuilder:validation:Enum=Stdout;File;None
	// +optional
	Log AuditLog `json:"log,omitempty"`

	// WebhookKey is the name of the file with the kubeconfig of the server to which events are sent. Default: none, no
	// webhook. Example: webhook.kubeconfig.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	WebhookKey string `json:"webhookKey,omitempty"`
}

// AuditLog is the destination of audit events.
type AuditLog string

// Destinations of audit events.
const (
	AuditStdout AuditLog = "Stdout"
	AuditFile   AuditLog = "File"
	AuditNone   AuditLog = "None"
)

// EncryptionProvider encrypts objects in etcd.
type EncryptionProvider string

// Encryption providers.
const (
	Secretbox EncryptionProvider = "secretbox"
	AESCBC    EncryptionProvider = "aescbc"
	KMSv2     EncryptionProvider = "kms"
)

// DecryptAnnotation lists resources, separated by commas, that were removed from spec.encryption.resources and whose
// stored objects the operator may decrypt. Removed resources that it does not list stay encrypted.
const DecryptAnnotation = "quorate.dev/decrypt"

// Encryption configures the encryption of objects in etcd. It can be enabled, changed and disabled on a running
// cluster. Each change has three stages: all API servers can read with the new key; they write with it, and the
// operator rewrites the stored objects; the old key is dropped.
//
// +kubebuilder:validation:XValidation:rule="(self.?provider.orValue('secretbox') == 'kms') == has(self.kms)",message="provider kms requires kms, and other providers exclude it"
type Encryption struct {
	// Resources that are encrypted: names with their group, including custom resources, or wildcards as in
	// EncryptionConfiguration. Names in built-in groups must exist. To remove a resource, or all of encryption, also name
	// it in the annotation quorate.dev/decrypt: its stored objects are decrypted. Default: ["secrets"]. Example:
	// ["secrets", "configmaps", "widgets.example.com"].
	//
	// +optional
	// +listType=set
	// +kubebuilder:default={"secrets"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.contains('.') || r in ['bindings', 'componentstatuses', 'configmaps', 'endpoints', 'events', 'limitranges', 'namespaces', 'nodes', 'persistentvolumeclaims', 'persistentvolumes', 'pods', 'podtemplates', 'replicationcontrollers', 'resourcequotas', 'secrets', 'serviceaccounts', 'services'])",message="names without a group must be resources of the core API, such as secrets; custom resources need their group"
	Resources []string `json:"resources,omitempty"`

	// Provider is the algorithm. The operator creates the keys of secretbox and aescbc, in the Secret
	// <cluster>-encryption-keys: back it up with etcd. kms: a plugin holds the keys. Default: secretbox. Example: aescbc.
	//
	// +optional
	// +kubebuilder:default=secretbox
	// +kubebuilder:validation:Enum=secretbox;aescbc;kms
	Provider EncryptionProvider `json:"provider,omitempty"`

	// Keys configures the replacement of the key of secretbox and aescbc.
	//
	// +optional
	Keys EncryptionKeys `json:"keys,omitzero"`

	// KMS is the plugin of provider kms. Default: unset. Example: {"name": "vault", "endpoint":
	// "unix:///run/kms/vault.sock", "hostPath": "/run/kms"}.
	//
	// +optional
	KMS *KMS `json:"kms,omitempty"`
}

// EncryptionKeys configures the replacement of the encryption key.
type EncryptionKeys struct {
	// MaxAge of the key, as a duration of at least 3m, after which it is replaced. Default: unset, the key is not replaced
	// by age. Example: 2160h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3m')",message="must be at least 3m"
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`

	// RotateBefore replaces the key if it was created before this time. A time in the future takes effect at that time.
	// Default: unset. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	RotateBefore *metav1.Time `json:"rotateBefore,omitempty"`
}

// KMS is a plugin that implements version 2 of the KMS API. The plugin rotates its own key.
type KMS struct {
	// Name of the plugin, which is stored with every object. A changed name means another plugin. Required. Example:
	// vault.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Endpoint is the URL of the plugin's UNIX socket in the pod. Required. Example: unix:///run/kms/vault.sock.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^unix:///.+$`
	Endpoint string `json:"endpoint"`

	// Timeout of a call, as a duration. Default: 3s. Example: 10s.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// HostPath is the directory of the node with the socket, mounted at the socket's directory in the pod. Default: unset,
	// spec.patches mounts it, for example for a sidecar. Example: /run/kms.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^/.*$`
	HostPath string `json:"hostPath,omitempty"`
}

// Patches change objects that the operator creates.
type Patches struct {
	// Pod is a strategic merge patch of the pods' metadata and spec, for sidecars, init containers, volumes, environment
	// variables, labels and annotations. A change restarts the pods one at a time. It cannot contain directives ($patch),
	// fields that have their own field in this spec, or the following, which the operator manages: the container apiserver
	// except for env, envFrom and volumeMounts, volumes of the operator, hostname, subdomain, hostNetwork, restartPolicy,
	// security contexts of the pod, and labels and annotations of quorate.dev and app.kubernetes.io. Default: none.
	// Example: {"spec": {"containers": [{"name": "shipper", "image": "shipper:1", "volumeMounts": [{"name": "audit-log",
	// "mountPath": "/var/log/quorate"}]}]}}.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Pod *runtime.RawExtension `json:"pod,omitempty"`
}

// Rewrite is the progress of rewriting stored objects with a new encryption key.
type Rewrite struct {
	// Resource that is being rewritten. Example: v1/secrets.
	Resource string `json:"resource,omitempty"`

	// Continue is the token of the next page of the resource. Empty: the first page.
	Continue string `json:"continue,omitempty"`

	// Objects is the number of objects that have been rewritten. Example: 4200.
	Objects int64 `json:"objects,omitempty"`
}
