package authentication

import (
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"quorate.dev/apiserver/config"
)

// tokenLife is how long kube-apiserver keeps the verdict on a good token.
const tokenLife = 10 * time.Second

// OptionsOf reads the files that the configuration names. Authenticators of service-account and other tokens are the
// caller's to append, as are clock and registerer to set.
func OptionsOf(c config.Authentication) (Options, error) {
	options := Options{TokenLife: tokenLife, Audiences: c.APIAudiences, Anonymous: c.Anonymous}
	if len(options.Audiences) == 0 && len(c.ServiceAccountIssuers) > 0 {
		options.Audiences = c.ServiceAccountIssuers[:1]
	}
	var err error
	if c.ClientCAFile != "" {
		if options.Clients, err = NewAuthority(c.ClientCAFile); err != nil {
			return Options{}, err
		}
	}
	if c.RequestHeaderCAFile != "" {
		options.FrontProxy = &FrontProxy{
			AllowedNames: c.RequestHeaderAllowedNames, UsernameHeaders: c.RequestHeaderUsername, UIDHeaders: c.RequestHeaderUID,
			GroupHeaders: c.RequestHeaderGroup, ExtraHeaderPrefixes: c.RequestHeaderExtraPrefix,
		}
		if options.FrontProxy.Authority, err = NewAuthority(c.RequestHeaderCAFile); err != nil {
			return Options{}, err
		}
	}
	if c.TokenFile != "" {
		tokens, err := NewTokenFile(c.TokenFile)
		if err != nil {
			return Options{}, err
		}
		options.Tokens = []authenticator.Token{tokens}
	}
	return options, nil
}

// Reloadable is something read from files that may change. Reload keeps what it has when it fails.
type Reloadable interface {
	Files() []string
	Reload() error
}

// Reloadables returns what the options were read from, for watching.
func (o Options) Reloadables() []Reloadable {
	var all []Reloadable
	if o.Clients != nil {
		all = append(all, o.Clients)
	}
	if o.FrontProxy != nil {
		all = append(all, o.FrontProxy.Authority)
	}
	for _, tokens := range o.Tokens {
		if reloadable, ok := tokens.(Reloadable); ok {
			all = append(all, reloadable)
		}
	}
	return all
}
