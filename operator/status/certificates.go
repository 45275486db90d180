package status

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// reportBeforeExpiry is the remaining lifetime at which a certificate that was not renewed is reported. For
// certificates with a short lifetime, it is half of the lifetime that remains at the time of renewal.
const reportBeforeExpiry = 30 * 24 * time.Hour

// reportTime returns the time at which a certificate is reported.
func (e Expiry) reportTime() time.Time {
	return e.At.Add(-min(reportBeforeExpiry, e.At.Sub(e.Renewal)/2))
}

// certificates is true when the user's certificate is usable, and no certificate has expired or is overdue for renewal.
func certificates(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if len(in.Certificates) == 0 {
		return metav1.Condition{
			Type: v1alpha1.CertificatesValid, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved,
			Message: "The certificates could not be read",
		}
	}
	first := in.Certificates[0]
	for _, certificate := range in.Certificates {
		if certificate.At.Before(first.At) {
			first = certificate
		}
	}
	at := first.At.UTC().Format(time.RFC3339)
	switch {
	case !in.Now.Before(first.At):
		return condition(v1alpha1.CertificatesValid, false, v1alpha1.ReasonExpired,
			"Certificate in Secret %s expired at %s", first.Secret, at)
	case in.UserCertificateErr != nil:
		return condition(v1alpha1.CertificatesValid, false, v1alpha1.ReasonInvalidCertificate,
			"A certificate or authority in spec.certificates cannot be used: %s", oneLine(in.UserCertificateErr))
	}
	for _, certificate := range in.Certificates {
		if in.Now.After(certificate.reportTime()) {
			return condition(v1alpha1.CertificatesValid, false, v1alpha1.ReasonExpiringSoon,
				"Certificate in Secret %s expires at %s", certificate.Secret, certificate.At.UTC().Format(time.RFC3339))
		}
	}
	return condition(v1alpha1.CertificatesValid, true, v1alpha1.ReasonValid,
		"The next certificate to expire is the one in Secret %s, at %s", first.Secret, at)
}

// rotating is true while authorities or keys are being replaced. Its reason is the stage. If this reconciliation could
// not decide on the next stage, the condition is true if the status records a stage. Otherwise the stored condition
// stays, including its observed generation, because a replacement that the spec requests since that generation may not
// have begun.
func rotating(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.CredentialsRotating)
	}
	if len(in.Rotations) == 0 {
		in.Rotations = recordedRotations(cluster.Status.Rotations)
	}
	if len(in.Rotations) == 0 {
		if in.RotationsUnknown && meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.CredentialsRotating) != nil {
			return metav1.Condition{}
		}
		return condition(v1alpha1.CredentialsRotating, false, v1alpha1.ReasonUpToDate,
			"No authority or key is being replaced")
	}
	messages := make([]string, 0, len(in.Rotations))
	for _, r := range in.Rotations {
		text := "Replacing the " + r.Name + ", stage " + r.Stage
		if r.Message != "" {
			text += ": " + r.Message
		}
		messages = append(messages, text)
	}
	return condition(v1alpha1.CredentialsRotating, true, in.Rotations[0].Stage, "%s", strings.Join(messages, "; "))
}

// recordedRotations returns the replacements that the status records. A paused or hibernated cluster keeps their
// stages.
func recordedRotations(r *v1alpha1.Rotations) (recorded []Rotation) {
	if r == nil {
		return nil
	}
	for _, entry := range []struct {
		name     string
		rotation *v1alpha1.Rotation
	}{
		{"certificate authorities", r.Authorities}, {"service-account keys", r.ServiceAccountKeys},
		{"encryption keys", r.EncryptionKeys},
	} {
		if entry.rotation != nil {
			recorded = append(recorded, Rotation{Name: entry.name, Stage: entry.rotation.Stage})
		}
	}
	return recorded
}
