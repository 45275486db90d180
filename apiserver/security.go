package apiserver

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/informers"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/authorization/node"
	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
)

// tokenLife is how long a token's verdict is believed.
const tokenLife = 10 * time.Second

// security is who is believed and what they may do.
type security struct {
	authenticator *authentication.Authenticator
	authorizer    *authorization.Authorizer
	policy        *rbac.Policy
	frontProxy    *authentication.FrontProxy
	tokens        *serviceaccount.Tokens // of service accounts
	reload        []serving.Reloadable
	clients       *authentication.Authority   // of client certificates; nil: none
	authorities   []*authentication.Authority // of client certificates, then of front proxies
	changed       bootstrap.Signal            // that something was reloaded
	nodes         *node.Authorizer            // nil: mode Node is off
}

// reloaded comes last among what is reloaded, and tells others.
type reloaded struct{ bootstrap.Signal }

// Files implements serving.Reloadable: it has none of its own.
func (reloaded) Files() []string { return nil }

// Reload implements serving.Reloadable.
func (r reloaded) Reload() error {
	r.Send()
	return nil
}

// composeSecurity reads the files that --client-ca-file and its like name.
func composeSecurity(c *config.Config, objects resource.Client, factory informers.SharedInformerFactory, clock clock.PassiveClock, registerer prometheus.Registerer) (*security, error) {
	s := &security{policy: rbac.New(), changed: bootstrap.NewSignal()}
	options := authentication.Options{
		TokenLife: tokenLife, Audiences: c.Authentication.Audiences(), Clock: clock, Registerer: registerer,
		// With a mode that allows everything, anonymous requests would be allowed everything too.
		Anonymous: c.Authentication.Anonymous && !slices.Contains(c.Authorization.Modes, "AlwaysAllow"),
	}
	var err error
	if c.Authentication.ClientCAFile != "" {
		if s.clients, err = s.authority(c.Authentication.ClientCAFile); err != nil {
			return nil, err
		}
		options.Clients = s.clients
	}
	if options.FrontProxy, err = s.composeFrontProxy(c.Authentication); err != nil {
		return nil, err
	}
	if options.Tokens, err = s.composeTokens(c.Authentication, objects, factory, clock); err != nil {
		return nil, err
	}
	s.authenticator = authentication.New(options)
	s.reload = append(s.reload, reloaded{s.changed})
	var nodes authorization.Mode
	if slices.Contains(c.Authorization.Modes, "Node") {
		s.nodes = node.New(factory, registerer)
		nodes = s.nodes
	}
	s.authorizer, err = authorization.New(c.Authorization.Modes, s.policy, nodes)
	return s, err
}

func (s *security) authority(file string) (*authentication.Authority, error) {
	authority, err := authentication.NewAuthority(file)
	if err != nil {
		return nil, err
	}
	s.reload = append(s.reload, authority)
	s.authorities = append(s.authorities, authority)
	return authority, nil
}

// published is what extension servers are told about authentication.
func (s *security) published(a config.Authentication) bootstrap.Authentication {
	var published bootstrap.Authentication
	if s.clients != nil {
		published.ClientCA = s.clients.PEM
	}
	if s.frontProxy != nil {
		published.RequestHeaderCA = s.frontProxy.Authority.PEM
		published.UsernameHeaders, published.UIDHeaders = a.RequestHeaderUsername, a.RequestHeaderUID
		published.GroupHeaders, published.ExtraHeaderPrefixes = a.RequestHeaderGroup, a.RequestHeaderExtraPrefix
		published.AllowedNames = a.RequestHeaderAllowedNames
	}
	return published
}

func (s *security) composeFrontProxy(a config.Authentication) (*authentication.FrontProxy, error) {
	if a.RequestHeaderCAFile == "" {
		return nil, nil
	}
	authority, err := s.authority(a.RequestHeaderCAFile)
	if err != nil {
		return nil, err
	}
	s.frontProxy = &authentication.FrontProxy{
		Authority:           authority,
		AllowedNames:        a.RequestHeaderAllowedNames,
		UsernameHeaders:     a.RequestHeaderUsername,
		UIDHeaders:          a.RequestHeaderUID,
		GroupHeaders:        a.RequestHeaderGroup,
		ExtraHeaderPrefixes: a.RequestHeaderExtraPrefix,
	}
	return s.frontProxy, nil
}

func (s *security) composeTokens(a config.Authentication, objects resource.Client, factory informers.SharedInformerFactory, clock clock.PassiveClock) ([]authenticator.Token, error) {
	var all []authenticator.Token
	if a.TokenFile != "" {
		file, err := authentication.NewTokenFile(a.TokenFile)
		if err != nil {
			return nil, err
		}
		s.reload = append(s.reload, file)
		// A token in a file is for whoever trusts the file.
		all = append(all, authenticator.WrapAudienceAgnosticToken(a.Audiences(), file))
	}
	var err error
	if s.tokens, err = serviceaccount.New(a, clock); err != nil {
		return nil, fmt.Errorf("prepare service-account tokens: %w", err)
	}
	serviceAccounts, err := s.tokens.Authenticators(objects)
	if err != nil {
		return nil, fmt.Errorf("prepare service-account tokens: %w", err)
	}
	all = append(all, serviceAccounts...)
	if a.BootstrapTokens {
		secrets := factory.Core().V1().Secrets().Lister().Secrets(metav1.NamespaceSystem)
		all = append(all, authenticator.WrapAudienceAgnosticToken(a.Audiences(), serviceaccount.Bootstrap(secrets)))
	}
	return all, nil
}
