package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// expiryNotice is how long before its end a certificate is worth a warning. Leaves are renewed long before.
const expiryNotice = 30 * 24 * time.Hour

// certificates: none is expired or about to.
func certificates(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if len(in.Certificates) == 0 {
		return metav1.Condition{Type: v1alpha1.CertificatesValid, Status: metav1.ConditionUnknown, Reason: "NotObserved", Message: "the certificates have not been read"}
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
		return condition(v1alpha1.CertificatesValid, false, "Expired", "%s expired at %s", first.Secret, at)
	case in.Now.Add(expiryNotice).After(first.At):
		return condition(v1alpha1.CertificatesValid, false, "ExpiresSoon", "%s expires at %s", first.Secret, at)
	}
	return condition(v1alpha1.CertificatesValid, true, "Valid", "the first to expire is %s at %s", first.Secret, at)
}
