// Package servingcert keeps the certificate with which the operator serves its metrics: in a Secret that its replicas share,
// made when there is none, renewed in time, and loaded without a restart. A Secret that the operator has not made is served as
// it is.
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
	// interval of looking at the Secret, which another replica may have renewed.
	interval = time.Minute
	// retryInterval follows a failure, conflictInterval two replicas that write at once.
	retryInterval    = 2 * time.Second
	conflictInterval = 100 * time.Millisecond
)

// Keeper keeps one certificate. It runs as part of a controller manager, in every replica.
type Keeper struct {
	Client client.Client  // must not be a cache
	Secret *corev1.Secret // name, namespace, and the labels of one that is the operator's; nil: it is kept in memory
	Leaf   pki.Leaf       // what the certificate is for
	Clock  clock.WithTicker
	Logger logr.Logger

	memory  map[string][]byte // the Secret's data where there is no Secret
	current atomic.Pointer[loaded]
}

// loaded is a certificate in use, and the PEM that it was read from.
type loaded struct {
	pem         string
	certificate tls.Certificate
}

// NeedLeaderElection is false: replicas that do not lead serve metrics too.
func (k *Keeper) NeedLeaderElection() bool { return false }

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := k.current.Load()
	if current == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	return &current.certificate, nil
}

// Start keeps the certificate until ctx ends. It returns no error for what can be tried again.
func (k *Keeper) Start(ctx context.Context) error {
	for {
		wait := interval
		switch err := k.refresh(ctx); {
		case err == nil, ctx.Err() != nil:
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err): // another replica was faster
			wait = conflictInterval
		default:
			k.Logger.Error(err, "keeping the serving certificate of the metrics")
			wait = retryInterval
		}
		select {
		case <-k.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// refresh reads the certificate, renews it if it must be, and serves it.
func (k *Keeper) refresh(ctx context.Context) error {
	stored, err := k.get(ctx)
	if err != nil {
		return err
	}
	if k.given(stored) {
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
		k.Logger.Info("serving certificate issued", "reason", reason)
	}
	return k.load(wanted)
}

// given reports whether others made the Secret.
func (k *Keeper) given(stored *corev1.Secret) bool {
	return k.Secret != nil && !labels.SelectorFromSet(k.Secret.Labels).Matches(labels.Set(stored.Labels))
}

// load serves a certificate unless it is the one that is served.
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

// get returns the Secret; without a resource version when it is yet to be created.
func (k *Keeper) get(ctx context.Context) (*corev1.Secret, error) {
	if k.Secret == nil {
		return &corev1.Secret{Data: k.memory}, nil
	}
	stored := &corev1.Secret{}
	err := k.Client.Get(ctx, client.ObjectKeyFromObject(k.Secret), stored)
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: k.Secret.Name, Namespace: k.Secret.Namespace, Labels: k.Secret.Labels},
			Type:       corev1.SecretTypeTLS,
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", k.Secret.Name, err)
	}
	return stored, nil
}

// put writes the Secret unless another replica has written it since it was read.
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
