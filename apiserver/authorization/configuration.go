package authorization

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"

	"quorate.dev/apiserver/config"
)

// These are the authorization modes.
const (
	modeAlwaysAllow = "AlwaysAllow"
	modeAlwaysDeny  = "AlwaysDeny"
	modeABAC        = "ABAC"
	modeWebhook     = "Webhook"
	modeRBAC        = "RBAC"
	modeNode        = "Node"
)

// legacyTimeout bounds requests to the webhook of --authorization-webhook-config-file, as in kube-apiserver.
const legacyTimeout = 30 * time.Second

// Configuration is the list of authorization modes in their order. It is immutable.
type Configuration struct {
	content *apiserver.AuthorizationConfiguration
	// file is empty if content is from flags.
	file string
	// data is the content of the file.
	data []byte
}

// Load reads --authorization-config, or the flags of the authorization modes. Its errors have kube-apiserver's texts.
func Load(c config.Authorization) (*Configuration, error) {
	if c.ConfigFile == "" {
		return &Configuration{content: fromFlags(c)}, nil
	}
	data, err := os.ReadFile(c.ConfigFile)
	if err != nil {
		return nil, err
	}
	content, err := decode(data, nil)
	if err != nil {
		return nil, err
	}
	return &Configuration{content: content, file: c.ConfigFile, data: data}, nil
}

// Has reports whether the configuration has a mode.
func (c *Configuration) Has(mode string) bool { return c.modes().Has(mode) }

func (c *Configuration) modes() sets.Set[string] {
	modes := sets.New[string]()
	for _, one := range c.content.Authorizers {
		modes.Insert(string(one.Type))
	}
	return modes
}

// fromFlags returns the configuration that is equivalent to --authorization-mode and the flags of its webhook.
func fromFlags(c config.Authorization) *apiserver.AuthorizationConfiguration {
	content := &apiserver.AuthorizationConfiguration{}
	for _, mode := range c.Modes {
		one := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == modeWebhook {
			one.Name = "default"
			one.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL:              metav1.Duration{Duration: c.Webhook.AuthorizedTTL},
				CacheAuthorizedRequests:    c.Webhook.AuthorizedTTL != 0,
				UnauthorizedTTL:            metav1.Duration{Duration: c.Webhook.UnauthorizedTTL},
				CacheUnauthorizedRequests:  c.Webhook.UnauthorizedTTL != 0,
				Timeout:                    metav1.Duration{Duration: legacyTimeout},
				FailurePolicy:              apiserver.FailurePolicyNoOpinion,
				SubjectAccessReviewVersion: c.Webhook.Version,
				ConnectionInfo: apiserver.WebhookConnectionInfo{
					Type:           apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
					KubeConfigFile: &c.Webhook.ConfigFile,
				},
			}
		}
		content.Authorizers = append(content.Authorizers, one)
	}
	return content
}

// decode parses and validates the content of a file. required are the modes, other than Webhook, that the file must
// have.
func decode(data []byte, required sets.Set[string]) (*apiserver.AuthorizationConfiguration, error) {
	content, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	known := sets.New(modeAlwaysAllow, modeAlwaysDeny, modeABAC, modeWebhook, modeRBAC, modeNode)
	errs := validation.ValidateAuthorizationConfiguration(cel.NewDefaultCompiler(), nil, content,
		known, sets.New(modeWebhook))
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return content, checkNames(content, required)
}

// checkNames returns an error unless each mode except Webhook has the lower-case name of its type, and all required
// modes exist.
func checkNames(content *apiserver.AuthorizationConfiguration, required sets.Set[string]) error {
	var errs []error
	missing := required.Clone()
	for _, one := range content.Authorizers {
		if one.Type == modeWebhook {
			continue
		}
		missing.Delete(string(one.Type))
		if expected := strings.ToLower(string(one.Type)); expected != one.Name {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", expected, one.Type, one.Name))
		}
	}
	if missing.Len() > 0 {
		errs = append(errs, fmt.Errorf("missing required types: %v", sets.List(missing)))
	}
	return utilerrors.NewAggregate(errs)
}

// errNoMode is kube-apiserver's error for a configuration without modes.
var errNoMode = errors.New("at least one authorization mode must be passed")

// Modes returns the types of the modes, sorted.
func (c *Configuration) Modes() []string { return sets.List(c.modes()) }

// CheckWebhooks returns an error if the client of a webhook cannot be created. It does not connect to webhooks.
func (c *Configuration) CheckWebhooks() error {
	for _, one := range c.content.Authorizers {
		if one.Type != modeWebhook {
			continue
		}
		if _, err := newWebhook(one.Name, one.Webhook, nil); err != nil {
			return fmt.Errorf("invalid authorization config: %w", err)
		}
	}
	return nil
}
