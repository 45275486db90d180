// Package jwt authenticates JSON web tokens of OpenID issuers: those of --authentication-config, which is reloaded when
// it changes, or the one of the --oidc-* flags. Upstream's authenticator verifies the tokens and maps their claims.
package jwt

import (
	"context"
	"sync/atomic"

	"github.com/go-logr/logr"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/utils/clock"
)

// Options configure Issuers.
type Options struct {
	Configuration *Configuration
	Audiences     authenticator.Audiences // of this server; tokens of the issuers are valid for all of them
	// ServiceAccountIssuers are this server's own, which the configuration must not have.
	ServiceAccountIssuers []string
	ServerID              string // of this server, in metrics
	// EgressLookup has the dialers to issuers with egressSelectorType; nil: they are errors.
	EgressLookup egressselector.Lookup
	Changed      func() // called after a reload; it must drop cached results
	Clock        clock.Clock
	Logger       logr.Logger
}

// Issuers authenticates the tokens of all issuers. Run must be called for reloads. It implements authenticator.Token and
// serving.Reloadable.
type Issuers struct {
	options Options
	current atomic.Pointer[issuers]
	changed chan struct{} // has an element if the file may have changed
}

// issuers is one version of the configuration. It is immutable.
type issuers struct {
	authenticator.Token
	urls   sets.Set[string]
	checks []func() error
	cancel context.CancelFunc // ends the requests to the issuers
}

// New returns the authenticator of the configuration. It fetches the issuers' keys in the background. Until Run ends,
// they are fetched again when tokens have unknown keys.
func New(options Options) (*Issuers, error) {
	i := &Issuers{options: options, changed: make(chan struct{}, 1)}
	initial, err := i.build(context.Background(), options.Configuration.content)
	if err != nil {
		return nil, err
	}
	i.current.Store(initial)
	return i, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return i.current.Load().AuthenticateToken(ctx, token)
}

// build returns the authenticators of a configuration, which end with ctx.
func (i *Issuers) build(ctx context.Context, content *apiserver.AuthenticationConfiguration) (_ *issuers, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	built := &issuers{urls: sets.New[string](), cancel: cancel}
	var all []authenticator.Token
	var compiler cel.Compiler
	for _, issuer := range content.JWT {
		if compiler == nil {
			compiler = cel.NewDefaultCompiler() // shared, because it is expensive
		}
		one, err := i.buildIssuer(ctx, issuer, compiler)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		built.checks = append(built.checks, one.HealthCheck)
		built.urls.Insert(issuer.Issuer.URL)
	}
	// An issuer's error is final: no other issuer may have the same URL.
	built.Token = authenticator.WrapAudienceAgnosticToken(i.options.Audiences, union.NewFailOnError(all...))
	return built, nil
}

func (i *Issuers) buildIssuer(
	ctx context.Context, issuer apiserver.JWTAuthenticator, compiler cel.Compiler,
) (oidc.AuthenticatorTokenWithHealthCheck, error) {
	options := oidc.Options{
		JWTAuthenticator: issuer, Compiler: compiler, SupportedSigningAlgs: i.options.Configuration.algorithms,
		DisallowedIssuers: i.options.ServiceAccountIssuers, EgressLookup: i.options.EgressLookup, APIServerID: i.options.ServerID,
	}
	if pem := issuer.Issuer.CertificateAuthority; pem != "" {
		options.CAContentProvider = authority(pem)
	}
	return oidc.New(ctx, options)
}

// authority is the certificate authority of an issuer. It implements oidc.CAContentProvider.
type authority string

// CurrentCABundleContent implements oidc.CAContentProvider.
func (a authority) CurrentCABundleContent() []byte { return []byte(a) }

// health returns an error until the keys of all issuers are known.
func (i *issuers) health() error {
	var errs []error
	for _, check := range i.checks {
		if err := check(); err != nil {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}
