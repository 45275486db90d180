package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// expiryNotice is the remaining lifetime below which a certificate is reported. Leaves are renewed long before.
const expiryNotice = 30 * 24 * time.Hour

// certificates is true when no certificate has expired or expires within expiryNotice.
func certificates(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if len(in.Certificates) == 0 {
		return metav1.Condition{
			Type: v1alpha1.CertificatesValid, Status: metav1.ConditionUnknown, Reason: "NotObserved",
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
		return condition(v1alpha1.CertificatesValid, false, "Expired",
			"Certificate in Secret %s expired at %s", first.Secret, at)
	case in.Now.Add(expiryNotice).After(first.At):
		return condition(v1alpha1.CertificatesValid, false, "ExpiringSoon",
			"Certificate in Secret %s expires at %s", first.Secret, at)
	}
	return condition(v1alpha1.CertificatesValid, true, "Valid",
		"The next certificate to expire is the one in Secret %s, at %s", first.Secret, at)
}
