// Package serviceaccount issues and authenticates service-account tokens and publishes the keys that verify them.
package serviceaccount

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

// Tokens issues and authenticates service-account tokens.
type Tokens struct {
	config config.Authentication
	clock  clock.PassiveClock
	// keys verify tokens. If it is nil, no token is accepted.
	keys serviceaccount.PublicKeysGetter
	// external is the external signer; nil if there is none.
	external serviceaccount.TokenGenerator
	// files has the keys in files; nil if an external signer has the keys.
	files *fileKeys
	// extendedLifetime is the lifetime in seconds of pods' tokens with --service-account-extend-token-expiration.
	extendedLifetime int64
	// closeSigner ends the connection to an external signer.
	closeSigner context.CancelFunc
}

// New reads the keys of --service-account-key-file and --service-account-signing-key-file, or connects to the external
// signer at --service-account-signing-endpoint and fetches its keys. The caller must call Close.
func New(ctx context.Context, config config.Authentication, clock clock.PassiveClock) (*Tokens, error) {
	t := &Tokens{
		config: config, clock: clock, extendedLifetime: serviceaccount.ExpirationExtensionSeconds, closeSigner: func() {},
	}
	if config.ServiceAccountSigningEndpoint != "" {
		return t, t.signExternally(ctx)
	}
	if config.ServiceAccountSigningKey != "" && len(config.ServiceAccountIssuers) == 0 {
		return nil, errors.New("a service-account signing key requires an issuer")
	}
	t.files = &fileKeys{verifyingFiles: config.ServiceAccountKeyFiles, signingFile: config.ServiceAccountSigningKey}
	if len(config.ServiceAccountIssuers) > 0 {
		t.files.issuer = config.ServiceAccountIssuers[0]
	}
	if err := t.files.Reload(); err != nil {
		return nil, err
	}
	if t.files.current.Load().verifying != nil {
		t.keys = t.files
	}
	return t, nil
}

// generator returns the signer of tokens, or nil if no tokens are issued.
func (t *Tokens) generator() serviceaccount.TokenGenerator {
	if t.files != nil {
		return t.files.current.Load().signing
	}
	return t.external
}

// Files returns the paths of the files with keys, which Reload reads again.
func (t *Tokens) Files() []string {
	if t.files == nil {
		return nil
	}
	files := slices.Clone(t.files.verifyingFiles)
	if t.files.signingFile != "" {
		files = append(files, t.files.signingFile)
	}
	return files
}

// Reload reads the keys again if they are in files. On an error the current keys stay in use.
func (t *Tokens) Reload() error {
	if t.keys == nil || t.files == nil {
		return nil
	}
	return t.files.Reload()
}

// signer returns the public key of the signing key in a file, and the generator that signs tokens with the key.
func signer(file, issuer string) (crypto.PublicKey, serviceaccount.TokenGenerator, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read the service-account signing key: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(issuer, key)
	if err != nil {
		return nil, nil, fmt.Errorf("use the service-account signing key: %w", err)
	}
	signing, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("the service-account signing key is a %T, which cannot sign", key)
	}
	return signing.Public(), generator, nil
}

// Authenticators returns the authenticators of legacy tokens, which are stored in Secrets, and of tokens that any of
// the issuers has signed. They read bound objects from objects.
func (t *Tokens) Authenticators(objects resource.Client) ([]authenticator.Token, error) {
	if t.keys == nil {
		return nil, nil
	}
	// The metrics are exported by builtin.MeasureUpstream.
	serviceaccount.RegisterMetrics()
	getter := getter{objects}
	legacy, err := serviceaccount.NewLegacyValidator(t.config.ServiceAccountLookup, getter, getter)
	if err != nil {
		return nil, err
	}
	all := []authenticator.Token{
		serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, t.keys, t.config.Audiences(), legacy),
	}
	if len(t.config.ServiceAccountIssuers) > 0 {
		bound := serviceaccount.NewValidator(getter)
		all = append(all,
			serviceaccount.JWTTokenAuthenticator(t.config.ServiceAccountIssuers, t.keys, t.config.Audiences(), bound))
	}
	return all, nil
}

// Close ends the connection to an external signer.
func (t *Tokens) Close() { t.closeSigner() }

// Document returns an OpenID discovery document and the number of seconds for which it may be cached.
type Document func() (body []byte, seconds int)

// Metadata has the OpenID discovery documents, with which other parties verify tokens. They change when the keys
// change.
type Metadata struct {
	// Configuration is the JSON document /.well-known/openid-configuration.
	Configuration Document
	// Keys is the JSON web key set /openid/v1/jwks.
	Keys Document
}

// Metadata returns the documents of the first issuer. The keys are served at address (host:port), unless
// --service-account-jwks-uri is set. Metadata returns an error if the issuer is not a valid OpenID issuer.
func (t *Tokens) Metadata(address string) (Metadata, error) {
	if t.keys == nil || len(t.config.ServiceAccountIssuers) == 0 {
		return Metadata{}, errors.New("no service-account issuer or key is configured")
	}
	provider, err := serviceaccount.NewOpenIDMetadataProvider(t.config.ServiceAccountIssuers[0],
		t.config.ServiceAccountJWKSURI, address, t.keys)
	if err != nil {
		return Metadata{}, err
	}
	return Metadata{Configuration: provider.GetConfigJSON, Keys: provider.GetKeysetJSON}, nil
}
