package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Certificates configures the certificates and the service-account keys of a cluster.
//
// +kubebuilder:validation:XValidation:rule="duration(self.?lifetime.orValue('8760h')) < duration(self.?authorities.?lifetime.orValue('87600h'))",message="certificates.lifetime must be less than certificates.authorities.lifetime"
type Certificates struct {
	// Lifetime of the certificates that the authorities sign, as a duration of at least 1m. The operator renews each
	// certificate when a third of its lifetime remains, without a restart. If you reduce the lifetime, it reissues the
	// certificates. Default: 8760h (one year). Example: 720h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be at least 1m"
	Lifetime *metav1.Duration `json:"lifetime,omitempty"`

	// Authorities configures the replacement of the five certificate authorities: for serving certificates, clients, front
	// proxies, etcd peers and etcd clients.
	//
	// +optional
	Authorities Authorities `json:"authorities,omitzero"`

	// ServiceAccountKeys configures the replacement of the signing key of service-account tokens.
	//
	// +optional
	ServiceAccountKeys ServiceAccountKeys `json:"serviceAccountKeys,omitzero"`

	// Serving configures the certificate that the API servers present to clients.
	//
	// +optional
	Serving ServingCertificate `json:"serving,omitzero"`
}

// Authorities configures the replacement of certificate authorities. It has three stages: trust the new authorities in
// addition to the old ones, reissue all certificates, drop the old authorities.
type Authorities struct {
	// Lifetime of an authority, as a duration of at least 3m. The operator replaces the authorities when a third of their
	// lifetime remains. A change applies to authorities that are created later. Default: 87600h (ten years).
	// Example: 43800h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3m')",message="must be at least 3m"
	Lifetime *metav1.Duration `json:"lifetime,omitempty"`

	// RotateBefore replaces all authorities if any authority was created before this time. A time in the future takes
	// effect at that time. Default: unset, authorities are replaced by age only. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	RotateBefore *metav1.Time `json:"rotateBefore,omitempty"`

	// Overlap is the minimum duration for which old authorities stay trusted after all certificates have been reissued.
	// Replace copied kubeconfigs within this time. Reduce it if the key of an authority has leaked. Default: 720h (30
	// days). Example: 1h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Overlap *metav1.Duration `json:"overlap,omitempty"`

	// ServingSecretRef names a Secret of the same namespace with your own authority for serving certificates, for example
	// from cert-manager: tls.crt, a self-signed certificate authority, and tls.key. If it differs from the authority in
	// use, the operator replaces that one in the same stages; age and rotateBefore do not apply to it. If it is missing or
	// invalid, the condition CertificatesValid reports this and nothing changes. Default: unset, the operator creates the
	// authority. Example: {"name": "demo-serving-root"}.
	//
	// +optional
	ServingSecretRef *corev1.LocalObjectReference `json:"servingSecretRef,omitempty"`

	// ClientSecretRef names a Secret with your own authority for client certificates, like servingSecretRef. API servers
	// accept all client certificates that it signs, including those for other purposes. Default: unset, the operator
	// creates the authority. Example: {"name": "demo-client-root"}.
	//
	// +optional
	ClientSecretRef *corev1.LocalObjectReference `json:"clientSecretRef,omitempty"`
}

// ServiceAccountKeys configures the replacement of the signing key of service-account tokens. It has three stages: all
// API servers accept tokens signed with the new key, new tokens are signed with it, the old key is dropped.
type ServiceAccountKeys struct {
	// MaxAge of the signing key, as a duration of at least 3m, after which it is replaced. Default: unset, the key is not
	// replaced by age. Example: 8760h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3m')",message="must be at least 3m"
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`

	// RotateBefore replaces the signing key if it was created before this time. A time in the future takes effect at that
	// time. Default: unset. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	RotateBefore *metav1.Time `json:"rotateBefore,omitempty"`

	// PublicationPeriod is the minimum duration for which the new key is published in the key set (/openid/v1/jwks) before
	// it signs tokens. Other verifiers of tokens may cache the key set for an hour. Default: 1h. Example: 24h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	PublicationPeriod *metav1.Duration `json:"publicationPeriod,omitempty"`

	// Overlap is the duration for which tokens of the old key stay valid after the new key signs tokens. Tokens with a
	// longer lifetime become invalid, including those in Secrets of type kubernetes.io/service-account-token, which never
	// expire. Default: the longest lifetime of a token, which is service-account-max-token-expiration of extraArgs, and at
	// least 8760h (one year) unless service-account-extend-token-expiration of extraArgs is false. Example: 24h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	Overlap *metav1.Duration `json:"overlap,omitempty"`
}

// ServingCertificate configures the certificate that the API servers present to clients.
type ServingCertificate struct {
	// SecretRef names a Secret of the same namespace with your own certificate, for example from cert-manager: tls.crt,
	// the certificate followed by intermediate ones; tls.key; and ca.crt, which is written to kubeconfigs and can be
	// absent if all clients trust the issuer. The operator applies changes within a minute. If the certificate is missing,
	// expired, not valid for the endpoint, or does not match its key, the condition CertificatesValid reports this, and
	// the one in use is kept. Default: unset, the operator issues the certificate. Example: {"name":
	// "api-example-org-tls"}.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
}

// Stages of a rotation.
const (
	StageTrustBoth = "TrustBoth"
	StageReissue   = "Reissue"
	StageDropOld   = "DropOld"
)

// Rotations are the replacements of authorities and keys in progress. The operator updates this status before it enters
// a stage, so that it can resume after a crash.
type Rotations struct {
	// Authorities is the replacement of the certificate authorities. Absent if there is none.
	//
	// +optional
	Authorities *Rotation `json:"authorities,omitempty"`

	// ServiceAccountKeys is the replacement of the signing key of service-account tokens. Absent if there is none.
	//
	// +optional
	ServiceAccountKeys *Rotation `json:"serviceAccountKeys,omitempty"`

	// EncryptionKeys is the replacement of the key that encrypts objects in etcd. Absent if there is none.
	//
	// +optional
	EncryptionKeys *Rotation `json:"encryptionKeys,omitempty"`
}

// Rotation is the progress of the replacement of authorities, or of a key.
type Rotation struct {
	// Stage of the replacement. TrustBoth: both the old and the new authorities or keys are accepted, the old ones sign.
	// Reissue: both are accepted, the new ones sign. DropOld: only the new ones are accepted. Example: TrustBoth.
	//
	// +kubebuilder:validation:Enum=TrustBoth;Reissue;DropOld
	Stage string `json:"stage"`

	// StageSince is the time at which the stage began. Example: 2026-01-01T00:00:00Z.
	StageSince metav1.Time `json:"stageSince"`

	// StartedAt is the time at which the replacement began. Example: 2026-01-01T00:00:00Z.
	StartedAt metav1.Time `json:"startedAt"`

	// Rewrite is the progress of rewriting stored objects with a new encryption key, in stage Reissue.
	//
	// +optional
	Rewrite *Rewrite `json:"rewrite,omitempty"`
}
