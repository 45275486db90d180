// Package jwt authenticates JSON web tokens of OpenID issuers: the issuers in the file of --authentication-config,
// which is reloaded when it changes, or the issuer of the --oidc-* flags. Upstream's authenticator verifies the tokens
// and maps their claims.
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
	// Audiences are the audiences of this server. Tokens of the issuers are valid for all of them.
	Audiences authenticator.Audiences
	// ServiceAccountIssuers are this server's own issuers, which the configuration must not contain.
	ServiceAccountIssuers []string
	// ServerID is the ID of this server in metrics.
	ServerID string
	// EgressLookup returns the dialers for issuers with egressSelectorType. If it is nil, such issuers are errors.
	EgressLookup egressselector.Lookup
	// Changed is called after a reload. It must drop cached results.
	Changed func()
	Clock   clock.Clock
	Logger  logr.Logger
}

// Issuers authenticates the tokens of all issuers. Run must be running for reloads. Issuers implements
// authenticator.Token and serving.Reloadable.
type Issuers struct {
	options Options
	current atomic.Pointer[issuers]
	// changed has an element if the file may have changed.
	changed chan struct{}
}

// issuers are the authenticators of one version of the configuration. It is immutable.
type issuers struct {
	authenticator.Token
	urls   sets.Set[string]
	checks []func() error
	// cancel ends the requests to the issuers.
	cancel context.CancelFunc
}

// New returns the authenticator for a configuration. It fetches the keys of the issuers in the background. Until Run
// ends, it fetches them again when a token has an unknown key.
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
	response, ok, err := i.current.Load().AuthenticateToken(ctx, token)
	return response, ok, truncated(err)
}

// build returns the authenticators for a configuration. They stop fetching keys when ctx ends.
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
			// The compiler is shared, because creating one is expensive.
			compiler = cel.NewDefaultCompiler()
		}
		one, err := i.buildIssuer(ctx, issuer, compiler)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		built.checks = append(built.checks, one.HealthCheck)
		built.urls.Insert(issuer.Issuer.URL)
	}
	// The error of an issuer is final, because no other issuer may have the same URL.
	built.Token = authenticator.WrapAudienceAgnosticToken(i.options.Audiences, union.NewFailOnError(all...))
	return built, nil
}

func (i *Issuers) buildIssuer(
	ctx context.Context, issuer apiserver.JWTAuthenticator, compiler cel.Compiler,
) (oidc.AuthenticatorTokenWithHealthCheck, error) {
	options := oidc.Options{
		JWTAuthenticator: issuer, Compiler: compiler, SupportedSigningAlgs: i.options.Configuration.algorithms,
		DisallowedIssuers: i.options.ServiceAccountIssuers, APIServerID: i.options.ServerID,
	}
	client, err := newClient(issuer.Issuer, i.options.EgressLookup)
	if err != nil {
		return nil, err
	}
	options.Client = client
	return oidc.New(ctx, options)
}

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
