package operator

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tokenFile has the token of the pod's service account.
const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// serviceAccount returns owner references to the service account of the operator's pod, so that the Secret and the
// Lease that the operator creates for itself are deleted with the installation. It returns none outside of a pod.
func serviceAccount(file string) ([]metav1.OwnerReference, error) {
	token, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	parts := strings.Split(string(token), ".")
	if len(parts) != 3 {
		return nil, nil // not a JWT: a token of another issuer
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, fmt.Errorf("decode the service account token: %w", err)
	}
	var claims struct {
		Kubernetes struct {
			ServiceAccount struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return nil, fmt.Errorf("decode the service account token: %w", err)
	}
	account := claims.Kubernetes.ServiceAccount
	if account.Name == "" || account.UID == "" {
		return nil, nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: account.UID}}, nil
}

// createLease creates the leader lease with an owner. Leader election would create it without one.
func (o *options) createLease(ctx context.Context, direct client.Client) error {
	if !o.leaderElect || len(o.owner) == 0 {
		return nil
	}
	err := direct.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: leaseName, Namespace: o.leaderElectionNamespace, OwnerReferences: o.owner,
	}})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
