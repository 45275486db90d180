package status

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// expiryNotice is the remaining lifetime at which a certificate is reported, unless half of the lifetime that remains
// at its renewal is shorter.
const expiryNotice = 30 * 24 * time.Hour

// notice returns the time at which a certificate is reported.
func (e Expiry) notice() time.Time {
	return e.At.Add(-min(expiryNotice, e.At.Sub(e.Renewal)/2))
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
		if in.Now.After(certificate.notice()) {
			return condition(v1alpha1.CertificatesValid, false, v1alpha1.ReasonExpiringSoon,
				"Certificate in Secret %s expires at %s", certificate.Secret, certificate.At.UTC().Format(time.RFC3339))
		}
	}
	return condition(v1alpha1.CertificatesValid, true, v1alpha1.ReasonValid,
		"The next certificate to expire is the one in Secret %s, at %s", first.Secret, at)
}

// rotating is true while authorities or keys are being replaced. Its reason is the stage.
func rotating(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.CredentialsRotating)
	}
	if len(in.Rotations) == 0 {
		return condition(v1alpha1.CredentialsRotating, false, v1alpha1.ReasonUpToDate, "No authority or key is being replaced")
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
