// Package servingcert manages the serving certificate of the operator's metrics. It is stored in a Secret that the
// replicas share, created if missing, renewed before it expires, and reloaded without a restart. A Secret that the
// operator did not create is used unchanged.
package servingcert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/pki"
)

const (
	// interval between reads of the Secret, which another replica may have renewed.
	interval = time.Minute
	// retryInterval applies after errors, conflictInterval after concurrent writes of two replicas.
	retryInterval    = 2 * time.Second
	conflictInterval = 100 * time.Millisecond
)

// Keeper manages one certificate. It is a manager.Runnable that runs in every replica.
type Keeper struct {
	Client client.Client  // must not be a cache
	Secret *corev1.Secret // name, namespace, owners, and labels of a Secret that the operator created; nil: keep the certificate in memory
	Leaf   pki.Leaf       // subject and usages of the certificate
	Clock  clock.WithTicker
	Logger logr.Logger

	memory  map[string][]byte // data if Secret is nil
	current atomic.Pointer[loaded]
}

// loaded is the certificate in use and its PEM encoding.
type loaded struct {
	pem         string
	certificate tls.Certificate
}

// NeedLeaderElection returns false, because all replicas serve metrics.
func (k *Keeper) NeedLeaderElection() bool { return false }

// GetCertificate implements tls.Config.GetCertificate.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := k.current.Load()
	if current == nil {
		return nil, errors.New("the serving certificate has not been loaded yet")
	}
	return &current.certificate, nil
}

// Start manages the certificate until ctx is done. It retries all errors.
func (k *Keeper) Start(ctx context.Context) error {
	for {
		wait := interval
		switch err := k.refresh(ctx); {
		case err == nil, ctx.Err() != nil:
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err): // another replica wrote first
			wait = conflictInterval
		default:
			k.Logger.Error(err, "Failed to refresh the serving certificate of the metrics endpoint")
			wait = retryInterval
		}
		select {
		case <-k.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// refresh reads the certificate, renews it if necessary and loads it.
func (k *Keeper) refresh(ctx context.Context) error {
	stored, err := k.get(ctx)
	if err != nil {
		return err
	}
	if k.foreign(stored) {
		return k.load(stored.Data)
	}
	wanted, reason, err := bundle(stored.Data).renewed(k.Leaf, k.Clock.Now())
	if err != nil {
		return err
	}
	if reason != "" {
		stored.Data = wanted
		if err := k.put(ctx, stored); err != nil {
			return err
		}
		k.Logger.Info("Issued serving certificate", "reason", reason)
	}
	return k.load(wanted)
}

// foreign reports whether the operator did not create the Secret.
func (k *Keeper) foreign(stored *corev1.Secret) bool {
	return k.Secret != nil && !labels.SelectorFromSet(k.Secret.Labels).Matches(labels.Set(stored.Labels))
}

// load starts to serve a certificate.
func (k *Keeper) load(b bundle) error {
	text := string(b[corev1.TLSCertKey])
	if current := k.current.Load(); current != nil && current.pem == text {
		return nil
	}
	certificate, err := tls.X509KeyPair(b[corev1.TLSCertKey], b[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("loading the serving certificate: %w", err)
	}
	k.current.Store(&loaded{pem: text, certificate: certificate})
	return nil
}

// get returns the Secret, without a resource version if it does not exist.
func (k *Keeper) get(ctx context.Context) (*corev1.Secret, error) {
	if k.Secret == nil {
		return &corev1.Secret{Data: k.memory}, nil
	}
	stored := &corev1.Secret{}
	err := k.Client.Get(ctx, client.ObjectKeyFromObject(k.Secret), stored)
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: k.Secret.Name, Namespace: k.Secret.Namespace, Labels: k.Secret.Labels, OwnerReferences: k.Secret.OwnerReferences,
			},
			Type: corev1.SecretTypeTLS,
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", k.Secret.Name, err)
	}
	return stored, nil
}

// put writes the Secret. It fails if another replica has written it since it was read.
func (k *Keeper) put(ctx context.Context, secret *corev1.Secret) error {
	if k.Secret == nil {
		k.memory = secret.Data
		return nil
	}
	var err error
	if secret.ResourceVersion == "" {
		err = k.Client.Create(ctx, secret)
	} else {
		err = k.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s: %w", secret.Name, err)
	}
	return nil
}
