// Package servingcert manages the serving certificate of the operator's metrics endpoint.
//
// The certificate is stored in a Secret that all replicas of the operator share. The first replica creates the Secret,
// any replica renews the certificate before it expires, and each replica reloads it without a restart. Replicas
// coordinate through the resource version of the Secret: of two concurrent writes one fails with a conflict, and that
// replica reads again. A Secret that the operator did not create, recognized by its labels, is served but never
// written.
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
	// interval is the time between reads of the Secret, which another replica may have renewed.
	interval = time.Minute
	// retryInterval is the first delay after an error, and conflictInterval the first delay after a conflict with a write
	// of another replica. Each further failure doubles the delay, up to interval, so that a persistent failure causes at
	// most about one write per interval.
	retryInterval    = 2 * time.Second
	conflictInterval = 100 * time.Millisecond
)

// Keeper manages one certificate. It is a manager.Runnable that runs in every replica of the operator.
type Keeper struct {
	Client client.Client  // reads must not be cached
	Secret *corev1.Secret // name, namespace, labels and owners of the Secret; nil: the certificate is kept in memory
	Leaf   pki.Leaf       // subject and usages of the certificate
	Clock  clock.WithTicker
	Logger logr.Logger

	memory  map[string][]byte // data of the certificate if Secret is nil
	current atomic.Pointer[loaded]
}

// loaded is the certificate that is being served, with its PEM encoding.
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

// Start manages the certificate until ctx is done. It logs and retries all errors.
func (k *Keeper) Start(ctx context.Context) error {
	var retry time.Duration // delay after the last failure; 0: the last refresh succeeded
	for {
		wait := interval
		switch err := k.refresh(ctx); {
		case err == nil, ctx.Err() != nil:
			retry = 0
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err): // another replica wrote first
			retry = min(max(2*retry, conflictInterval), interval)
			wait = retry
		default:
			k.Logger.Error(err, "Failed to refresh the serving certificate of the metrics endpoint")
			retry = min(max(2*retry, retryInterval), interval)
			wait = retry
		}
		select {
		case <-k.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// refresh reads the Secret, renews the certificate if that is necessary, and serves the result.
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
		if err := k.write(ctx, stored); err != nil {
			return err
		}
		k.Logger.Info("Issued serving certificate", "reason", reason)
	}
	return k.load(wanted)
}

// foreign reports whether the Secret lacks the operator's labels, which means that another client, such as
// cert-manager, manages it.
func (k *Keeper) foreign(stored *corev1.Secret) bool {
	return k.Secret != nil && !labels.SelectorFromSet(k.Secret.Labels).Matches(labels.Set(stored.Labels))
}

// load starts to serve the certificate in b, unless it is served already.
func (k *Keeper) load(b bundle) error {
	text := string(b[corev1.TLSCertKey])
	if current := k.current.Load(); current != nil && current.pem == text {
		return nil
	}
	certificate, err := tls.X509KeyPair(b[corev1.TLSCertKey], b[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("load the serving certificate: %w", err)
	}
	k.current.Store(&loaded{pem: text, certificate: certificate})
	return nil
}

// get returns the stored Secret, or a new one without a resource version if it does not exist.
func (k *Keeper) get(ctx context.Context) (*corev1.Secret, error) {
	if k.Secret == nil {
		return &corev1.Secret{Data: k.memory}, nil
	}
	stored := &corev1.Secret{}
	err := k.Client.Get(ctx, client.ObjectKeyFromObject(k.Secret), stored)
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: k.Secret.Name, Namespace: k.Secret.Namespace, Labels: k.Secret.Labels,
				OwnerReferences: k.Secret.OwnerReferences,
			},
			Type: corev1.SecretTypeTLS,
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", k.Secret.Name, err)
	}
	return stored, nil
}

// write creates or updates the Secret. It returns a conflict if another replica has written the Secret since it was
// read.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret) error {
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
		return fmt.Errorf("write Secret %s: %w", secret.Name, err)
	}
	return nil
}
