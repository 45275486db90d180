package apiserver

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/storage"
)

// loadEncryption returns nil without --encryption-provider-config.
func (s *Server) loadEncryption(ctx context.Context) (*encryption.Configuration, error) {
	if s.config.Etcd.EncryptionConfig == "" {
		return nil, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("the host name identifies the replica: %w", err)
	}
	return encryption.Load(ctx, encryption.Options{
		File: s.config.Etcd.EncryptionConfig, Reload: s.config.Etcd.ReloadEncryptionConfig,
		Server: bootstrap.IdentityOf(hostname),
	})
}

// deletesUnreadable reports whether objects can be deleted that cannot be decrypted or decoded.
func deletesUnreadable() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// storageEncryption returns nil if all values are plain.
func (s *Server) storageEncryption(catalogs *resource.CatalogHolder) (e *storage.Encryption) {
	if s.encryption != nil {
		e = s.encryption.Storage(catalogs)
	}
	if deletesUnreadable() {
		return encryption.Malformed(e)
	}
	return e
}

// encryptionHooks returns the reload, if there is one.
func (s *Server) encryptionHooks() []hook {
	if s.encryption == nil || !s.encryption.Reloads() {
		return nil
	}
	return []hook{{name: "start-encryption-provider-config-automatic-reload", check: true, run: begin(s.encryption.Run)}}
}

// addEncryptionChecks adds the checks of KMS plugins. As in kube-apiserver they do not fail /livez.
func (s *Server) addEncryptionChecks() {
	if s.encryption == nil {
		return
	}
	for _, check := range s.encryption.Checks() {
		s.health.Add(serving.Healthz|serving.Readyz, serving.Check{Name: check.Name, Run: check.Run})
	}
}

func (s *Server) closeEncryption() {
	if s.encryption != nil {
		s.encryption.Close()
	}
}
