package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/authentication/jwt"
	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/authorization/abac"
	"quorate.dev/apiserver/authorization/node"
	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
)

// tokenLife is the time for which the result of authenticating a token is cached.
const tokenLife = 10 * time.Second

// auth has the components of authentication and authorization.
type auth struct {
	authenticator *authentication.Authenticator
	authorizer    *authorization.Authorizer
	policy        *rbac.Policy
	// frontProxy is nil without --requestheader-client-ca-file.
	frontProxy *authentication.FrontProxy
	// proxy returns the current front proxy; nil if there never is one.
	proxy  func() *authentication.FrontProxy
	tokens *serviceaccount.Tokens
	reload []serving.Reloadable
	// clients are the authorities of client certificates; nil without --client-ca-file.
	clients *authentication.Authority
	// authorities are the authorities of client certificates and of front proxies.
	authorities []*authentication.Authority
	// changed is sent when a file has been reloaded.
	changed bootstrap.Signal
	// nodes is nil without the authorization mode Node.
	nodes   *node.Authorizer
	issuers *jwt.Issuers
}

// authConfiguration is read before any component is started: from --authentication-config and --authorization-config,
// or from the flags that these replace.
type authConfiguration struct {
	authentication *jwt.Configuration
	authorization  *authorization.Configuration
}

func loadAuthConfiguration(c *config.Config) (loaded authConfiguration, err error) {
	if loaded.authorization, err = authorization.Load(c.Authorization); err != nil {
		return loaded, err
	}
	loaded.authentication, err = jwt.Load(c)
	return loaded, err
}

// reloaded is the last Reloadable. Its Reload is called after all others.
type reloaded struct{ *auth }

// Files implements serving.Reloadable.
func (reloaded) Files() []string { return nil }

// Reload implements serving.Reloadable.
func (r reloaded) Reload() error {
	r.authenticator.Flush()
	r.changed.Send()
	return nil
}

// run runs the reloads of authentication and authorization until ctx ends.
func (a *auth) run(ctx context.Context) {
	defer a.tokens.Close()
	_ = startup.Together(ctx, func(ctx context.Context) error {
		a.issuers.Run(ctx)
		return nil
	}, func(ctx context.Context) error {
		a.authorizer.Run(ctx)
		return nil
	})
}

// composeAuth composes authentication and authorization. It reads the files of --client-ca-file,
// --requestheader-client-ca-file and --token-auth-file, and the service-account keys.
func (s *cluster) composeAuth(ctx context.Context) (_ *auth, err error) {
	c := s.config
	a := &auth{policy: rbac.New(), changed: bootstrap.NewSignal()}
	anonymous := s.configuration.authentication.Anonymous
	options := authentication.Options{
		TokenLife: tokenLife, Audiences: c.Authentication.Audiences(), Clock: s.clock, Registerer: s.metrics,
		Anonymous: anonymous.Enabled, WebhookLife: c.Authentication.TokenWebhook.CacheTTL,
	}
	for _, condition := range anonymous.Conditions {
		options.AnonymousPaths = append(options.AnonymousPaths, condition.Path)
	}
	if c.Authentication.ClientCAFile != "" {
		if a.clients, err = a.authority(c.Authentication.ClientCAFile); err != nil {
			return nil, err
		}
		options.Clients = a.clients
	}
	if err := a.composeFrontProxy(c.Authentication); err != nil {
		return nil, err
	}
	if err := a.checkOverlap(); err != nil {
		return nil, err
	}
	options.FrontProxy = a.proxy
	if options.Tokens, err = s.composeTokens(ctx, a); err != nil {
		return nil, err
	}
	if webhook := c.Authentication.TokenWebhook; webhook.ConfigFile != "" {
		options.Webhook, err = authentication.NewTokenWebhook(webhook.ConfigFile, webhook.Version,
			c.Authentication.Audiences(), s.egress.ControlPlane)
		if err != nil {
			return nil, err
		}
	}
	a.authenticator = authentication.New(options)
	if err := s.composeAuthorizer(a); err != nil {
		return nil, err
	}
	a.reload = append(a.reload, a.issuers, a.authorizer, reloaded{a})
	return a, nil
}

// composeAuthorizer composes the authorizer.
func (s *cluster) composeAuthorizer(a *auth) (err error) {
	options := authorization.Options{
		Configuration: s.configuration.authorization, RBAC: a.policy, ServerID: serverID(), Dial: s.egress.ControlPlane,
		Clock: s.clock, Logger: s.logger.WithName("authorization"), Registerer: s.metrics,
	}
	if options.Configuration.Has("Node") {
		a.nodes = node.New(s.informers)
		options.Node = a.nodes
	}
	if options.Configuration.Has("ABAC") {
		if options.ABAC, err = abac.Load(s.config.Authorization.PolicyFile); err != nil {
			return fmt.Errorf("invalid authorization config: %w", err)
		}
	}
	if a.authorizer, err = authorization.New(options); err != nil {
		return fmt.Errorf("invalid authorization config: %w", err)
	}
	return nil
}

func (a *auth) authority(file string) (*authentication.Authority, error) {
	authority, err := authentication.NewAuthority(file)
	if err != nil {
		return nil, err
	}
	a.reload = append(a.reload, authority)
	a.authorities = append(a.authorities, authority)
	return authority, nil
}

// published returns the content of the ConfigMap extension-apiserver-authentication, for extension servers.
func (a *auth) published(c config.Authentication) bootstrap.Authentication {
	var published bootstrap.Authentication
	if a.clients != nil {
		published.ClientCA = a.clients.PEM
	}
	if a.frontProxy != nil {
		published.RequestHeaderCA = a.frontProxy.Authority.PEM
		published.UsernameHeaders, published.UIDHeaders = c.RequestHeaderUsername, c.RequestHeaderUID
		published.GroupHeaders, published.ExtraHeaderPrefixes = c.RequestHeaderGroup, c.RequestHeaderExtraPrefix
		published.AllowedNames = c.RequestHeaderAllowedNames
	}
	return published
}

func (a *auth) composeFrontProxy(c config.Authentication) error {
	if c.RequestHeaderCAFile == "" {
		return nil
	}
	authority, err := a.authority(c.RequestHeaderCAFile)
	if err != nil {
		return err
	}
	a.frontProxy = &authentication.FrontProxy{
		Authority:           authority,
		AllowedNames:        c.RequestHeaderAllowedNames,
		UsernameHeaders:     c.RequestHeaderUsername,
		UIDHeaders:          c.RequestHeaderUID,
		GroupHeaders:        c.RequestHeaderGroup,
		ExtraHeaderPrefixes: c.RequestHeaderExtraPrefix,
	}
	a.proxy = a.frontProxy.Current
	return nil
}

// checkOverlap returns kube-apiserver's error for a configuration with which every client could send the name of
// another user as a front proxy.
func (a *auth) checkOverlap() error {
	if a.clients == nil || a.frontProxy == nil || len(a.frontProxy.AllowedNames) > 0 {
		return nil
	}
	if !a.clients.Overlaps(a.frontProxy.Authority) {
		return nil
	}
	return errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; " +
		"--requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating " +
		"proxy headers for arbitrary users")
}

// composeTokens returns the authenticators of bearer tokens in the order in which they are tried.
func (s *cluster) composeTokens(ctx context.Context, a *auth) ([]authenticator.Token, error) {
	c := s.config.Authentication
	var all []authenticator.Token
	if c.TokenFile != "" {
		file, err := authentication.NewTokenFile(c.TokenFile)
		if err != nil {
			return nil, err
		}
		a.reload = append(a.reload, file)
		// As in kube-apiserver, a token in the file is valid for every audience.
		all = append(all, authenticator.WrapAudienceAgnosticToken(c.Audiences(), file))
	}
	var err error
	if a.tokens, err = serviceaccount.New(ctx, c, s.clock); err != nil {
		return nil, fmt.Errorf("prepare service-account tokens: %w", err)
	}
	a.reload = append(a.reload, a.tokens)
	serviceAccounts, err := a.tokens.Authenticators(s.objects)
	if err != nil {
		return nil, fmt.Errorf("prepare service-account tokens: %w", err)
	}
	all = append(all, serviceAccounts...)
	if c.BootstrapTokens {
		secrets := s.informers.Core().V1().Secrets().Lister().Secrets(metav1.NamespaceSystem)
		all = append(all, authenticator.WrapAudienceAgnosticToken(c.Audiences(), serviceaccount.Bootstrap(secrets)))
	}
	// The issuers follow service accounts, because an unknown key makes them fetch keys.
	a.issuers, err = jwt.New(jwt.Options{
		Configuration: s.configuration.authentication, Audiences: c.Audiences(),
		ServiceAccountIssuers: c.ServiceAccountIssuers, ServerID: serverID(),
		EgressLookup: s.egress.Lookup,
		Changed:      func() { a.authenticator.Flush() }, Clock: s.clock, Logger: s.logger.WithName("authentication"),
	})
	return append(all, a.issuers), err
}
