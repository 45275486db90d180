package jwt

import (
	"errors"
	"fmt"
	"os"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"quorate.dev/apiserver/config"
)

// Configuration has the issuers of tokens and the configuration of anonymous requests. It is immutable.
type Configuration struct {
	// Anonymous configures which requests without credentials are from system:anonymous. A reload cannot change it.
	Anonymous apiserver.AnonymousAuthConfig

	content *apiserver.AuthenticationConfiguration
	// algorithms are the allowed signing algorithms of tokens.
	algorithms []string
	// file is empty if content is from flags.
	file string
	// data is the content of the file.
	data []byte
}

// Load reads --authentication-config or the --oidc-* flags. Its errors have kube-apiserver's texts.
func Load(c *config.Config) (*Configuration, error) {
	a := &c.Authentication
	loaded := &Configuration{file: a.ConfigFile, algorithms: a.OIDC.SigningAlgs}
	var err error
	if a.ConfigFile == "" {
		loaded.content, err = fromFlags(a.OIDC)
	} else {
		loaded.algorithms = oidc.AllValidSigningAlgorithms()
		loaded.content, loaded.data, err = read(a.ConfigFile)
	}
	if err != nil {
		return nil, err
	}
	switch configured := loaded.content.Anonymous; {
	case configured != nil && c.AnonymousSet():
		return nil, field.Forbidden(field.NewPath("anonymous"),
			"--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
	case configured != nil:
		loaded.Anonymous = *configured
	default:
		loaded.Anonymous = apiserver.AnonymousAuthConfig{Enabled: c.AnonymousAllowed()}
	}
	if a.ConfigFile == "" && len(loaded.content.JWT) == 0 {
		// Without issuers there is nothing to validate; validation would initialize CEL.
		return loaded, nil
	}
	if err := validate(loaded.content, nil).ToAggregate(); err != nil {
		return nil, fmt.Errorf("invalid authentication configuration: %w", err)
	}
	return loaded, nil
}

func read(file string) (*apiserver.AuthenticationConfiguration, []byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to load authentication configuration from file %q: %w", file, err)
	}
	content, err := decode(data)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to load authentication configuration from file %q: %w", file, err)
	}
	return content, data, nil
}

func decode(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("empty config data")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	content, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", object)
	}
	return content, nil
}

func validate(content *apiserver.AuthenticationConfiguration, disallowedIssuers []string) field.ErrorList {
	return validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), content, disallowedIssuers)
}

// fromFlags returns the configuration that is equivalent to the --oidc-* flags.
func fromFlags(o config.OIDC) (*apiserver.AuthenticationConfiguration, error) {
	content := &apiserver.AuthenticationConfiguration{}
	if o.IssuerURL == "" || o.ClientID == "" {
		return content, nil
	}
	prefix := usernamePrefix(o)
	issuer := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Prefix: &prefix, Claim: o.UsernameClaim},
		},
	}
	if o.GroupsClaim != "" {
		issuer.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Prefix: &o.GroupsPrefix, Claim: o.GroupsClaim}
	}
	if o.CAFile != "" {
		authority, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, err
		}
		issuer.Issuer.CertificateAuthority = string(authority)
	}
	for claim, value := range o.RequiredClaims {
		issuer.ClaimValidationRules = append(issuer.ClaimValidationRules,
			apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	content.JWT = []apiserver.JWTAuthenticator{issuer}
	return content, nil
}

// usernamePrefix returns the prefix of user names. As in kube-apiserver, the default is the URL of the issuer, except
// for the claim email, because other issuers may use the same values in other claims. "-" means no prefix.
func usernamePrefix(o config.OIDC) string {
	switch {
	case o.UsernamePrefix == "-":
		return ""
	case o.UsernamePrefix == "" && o.UsernameClaim != "email":
		return o.IssuerURL + "#"
	}
	return o.UsernamePrefix
}

// checkReload returns an error if content must not replace the current configuration.
func (c *Configuration) checkReload(content *apiserver.AuthenticationConfiguration, disallowedIssuers []string) error {
	errs := validate(content, disallowedIssuers)
	if !reflect.DeepEqual(c.content.Anonymous, content.Anonymous) {
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	return errs.ToAggregate()
}
