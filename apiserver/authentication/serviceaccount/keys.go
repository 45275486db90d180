package serviceaccount

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// fileKeys are the keys in the files of --service-account-key-file and --service-account-signing-key-file. Unlike
// kube-apiserver, the server reads the files again when they change.
type fileKeys struct {
	verifyingFiles []string
	signingFile    string
	issuer         string

	current   atomic.Pointer[keySet]
	mu        sync.Mutex
	listeners []serviceaccount.Listener
}

// keySet is one version of the keys. Both fields may be nil.
type keySet struct {
	verifying serviceaccount.PublicKeysGetter
	signing   serviceaccount.TokenGenerator
}

// Reload reads the files. It reads the verifying keys first: when the server publishes the keys of one version of the
// files, it signs with the signing key of the same or a later version. On an error the current keys stay in use.
func (k *fileKeys) Reload() error {
	var verifying []any
	for _, file := range k.verifyingFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("read a service-account key: %w", err)
		}
		verifying = append(verifying, keys...)
	}
	next := &keySet{}
	if k.signingFile != "" {
		public, generator, err := signer(k.signingFile, k.issuer)
		if err != nil {
			return err
		}
		if next.signing = generator; len(verifying) == 0 {
			verifying = append(verifying, public)
		}
	}
	if len(verifying) > 0 {
		var err error
		if next.verifying, err = serviceaccount.StaticPublicKeysGetter(verifying); err != nil {
			return err
		}
	}
	k.current.Store(next)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, listener := range k.listeners {
		listener.Enqueue()
	}
	return nil
}

// AddListener implements serviceaccount.PublicKeysGetter.
func (k *fileKeys) AddListener(listener serviceaccount.Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, listener)
}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter.
func (k *fileKeys) GetCacheAgeMaxSeconds() int {
	return k.current.Load().verifying.GetCacheAgeMaxSeconds()
}

// GetPublicKeys implements serviceaccount.PublicKeysGetter.
func (k *fileKeys) GetPublicKeys(ctx context.Context, keyIDHint string) []serviceaccount.PublicKey {
	return k.current.Load().verifying.GetPublicKeys(ctx, keyIDHint)
}
