package node

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// defaultTokenLife is the API's default of expirationSeconds, in seconds.
const defaultTokenLife = int64(3600)

// tokens are the service-account tokens of a Pod. Like the kubelet, the worker renews a token after 80% of its
// lifetime.
type tokens struct {
	client kubernetes.Interface
	clock  clock.Clock
	issued map[string]token // by path in the volume
}

type token struct {
	value string
	renew time.Time
}

// Token implements volumes.Tokens.
func (t *tokens) Token(
	ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection,
) (string, error) {
	now := t.clock.Now()
	if known, ok := t.issued[projection.Path]; ok && now.Before(known.renew) {
		return known.value, nil
	}
	life := ptr.Deref(projection.ExpirationSeconds, defaultTokenLife)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &life,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		},
	}}
	if projection.Audience != "" {
		request.Spec.Audiences = []string{projection.Audience}
	}
	response, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	renew := now.Add(response.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	t.issued[projection.Path] = token{value: response.Status.Token, renew: renew}
	return response.Status.Token, nil
}

// next returns the time at which the next token is due for renewal, or zero if there is no token.
func (t *tokens) next() time.Time {
	var next time.Time
	for _, issued := range t.issued {
		next = earlier(next, issued.renew)
	}
	return next
}

// earlier returns the earlier of two times. A zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
