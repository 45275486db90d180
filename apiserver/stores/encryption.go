package stores

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/storage"
)

// loadEncryption loads the encryption configuration. It returns nil without --encryption-provider-config.
func loadEncryption(ctx context.Context, c config.Etcd) (*encryption.Configuration, error) {
	if c.EncryptionConfig == "" {
		return nil, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("the host name identifies the replica: %w", err)
	}
	return encryption.Load(ctx, encryption.Options{
		File: c.EncryptionConfig, Reload: c.ReloadEncryptionConfig,
		Server: bootstrap.IdentityOf(hostname),
	})
}

// DeletesUnreadable reports whether objects that cannot be decrypted or decoded can be deleted.
func DeletesUnreadable() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// storageEncryption returns the encryption of the stores, or nil if no values are encrypted.
func (s *Stores) storageEncryption(catalogs *resource.CatalogHolder) (e *storage.Encryption) {
	if s.encryption != nil {
		e = s.encryption.Storage(catalogs)
	}
	if DeletesUnreadable() {
		return encryption.Malformed(e)
	}
	return e
}

// reloadEncryption loads changed keys until ctx ends. After each change, the watch caches verify their objects, and
// stop serving objects that were decrypted with a removed key.
func (s *Stores) reloadEncryption(ctx context.Context) {
	s.encryption.Run(ctx, func() {
		for _, l := range s.locations() {
			l.Caches.VerifyDecryption()
		}
	})
}

// encryptionHooks returns the reload, if there is one.
func (s *Stores) encryptionHooks() startup.Sequence {
	if s.encryption == nil || !s.encryption.Reloads() {
		return nil
	}
	return startup.Sequence{{
		Name: "start-encryption-provider-config-automatic-reload", Check: true, Run: startup.Begin(s.reloadEncryption),
	}}
}

// addEncryptionChecks adds the health checks of KMS plugins. As in kube-apiserver, they do not affect /livez.
func (s *Stores) addEncryptionChecks(health *serving.Health) {
	if s.encryption == nil {
		return
	}
	for _, check := range s.encryption.Checks() {
		health.Add(serving.Healthz|serving.Readyz, serving.Check{Name: check.Name, Run: check.Run})
	}
}
