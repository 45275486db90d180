// Package authorization decides whether a user may make a request. Members of system:masters may make every request;
// otherwise the modes of --authorization-config or --authorization-mode decide in their order.
package authorization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
)

// ErrBusy is the error of a decision that requires a call of another server while there are too many such calls. The
// client should retry.
var ErrBusy = errors.New("too many authorization checks")

// Mode is one authorization mode.
type Mode interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
}

// Options configure an Authorizer.
type Options struct {
	Configuration *Configuration
	RBAC          Mode // required by mode RBAC
	Node          Mode // required by mode Node
	ABAC          Mode // required by mode ABAC
	// ServerID is the ID of this server in metrics.
	ServerID string
	// Dial connects to webhooks; nil connects directly.
	Dial utilnet.DialFunc

	Clock      clock.Clock
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Authorizer tries its modes in order until one allows or denies the request. Run must be running for reloads by
// interval. Authorizer implements authorizer.Authorizer, authorizer.RuleResolver and serving.Reloadable.
type Authorizer struct {
	options Options
	metrics *decisionMetrics
	// modes points to an immutable slice.
	modes atomic.Pointer[[]instrumented]

	// mu is held during a reload.
	mu sync.Mutex
	// data is the content of the file when it was last read.
	data []byte
	last *apiserver.AuthorizationConfiguration
}

// Named is a mode and the name that precedes the reasons of its decisions in the messages of denied requests.
type Named struct {
	Mode
	Name string
}

// instrumented is a named mode and the counters of its decisions.
type instrumented struct {
	Named
	allowed, denied prometheus.Counter
}

// New returns the authorizer for a configuration.
func New(options Options) (*Authorizer, error) {
	a := &Authorizer{
		options: options, metrics: newDecisionMetrics(options.Registerer),
		data: options.Configuration.data, last: options.Configuration.content,
	}
	modes, err := a.build(options.Configuration.content)
	if err != nil {
		return nil, err
	}
	a.modes.Store(&modes)
	a.registerMetrics()
	return a, nil
}

// Of returns an authorizer with modes that are not part of a configuration. Like upstream's delegated authorization it
// has no metrics, and it cannot be reloaded.
func Of(modes ...Named) *Authorizer {
	a := &Authorizer{options: Options{Configuration: &Configuration{}}, metrics: newDecisionMetrics(nil)}
	var all []instrumented
	for _, mode := range modes {
		all = append(all, a.metrics.instrument("", mode))
	}
	a.modes.Store(&all)
	return a
}

// build returns the modes of a configuration. RBAC, Node and ABAC are the same after a reload; webhooks are created
// again.
func (a *Authorizer) build(content *apiserver.AuthorizationConfiguration) ([]instrumented, error) {
	if len(content.Authorizers) == 0 {
		return nil, errNoMode
	}
	var modes []instrumented
	for _, one := range content.Authorizers {
		mode, err := a.modeOf(one)
		if err != nil {
			return nil, err
		}
		modes = append(modes, a.metrics.instrument(string(one.Type), Named{mode, one.Name}))
	}
	return modes, nil
}

func (a *Authorizer) modeOf(c apiserver.AuthorizerConfiguration) (Mode, error) {
	var mode Mode
	switch c.Type {
	case modeAlwaysAllow:
		return AlwaysAllow{}, nil
	case modeAlwaysDeny:
		return AlwaysDeny{}, nil
	case modeWebhook:
		return newWebhook(c.Name, c.Webhook, a.options.Dial)
	case modeRBAC:
		mode = a.options.RBAC
	case modeNode:
		mode = a.options.Node
	case modeABAC:
		mode = a.options.ABAC
	default:
		return nil, fmt.Errorf("unknown authorization mode %s specified", c.Type)
	}
	if mode == nil || !a.options.Configuration.Has(string(c.Type)) {
		return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", c.Type)
	}
	return mode, nil
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	who := attributes.GetUser()
	if who == nil {
		return authorizer.DecisionNoOpinion, "", errors.New("no user on request")
	}
	if slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	var reasons []string
	var errs []error
	for _, mode := range *a.modes.Load() {
		decision, reason, err := mode.Authorize(ctx, attributes)
		switch decision {
		case authorizer.DecisionAllow:
			mode.allowed.Inc()
			return decision, reason, err
		case authorizer.DecisionDeny:
			mode.denied.Inc()
			return decision, reason, err
		case authorizer.DecisionNoOpinion:
		}
		if reason != "" {
			reasons = append(reasons, mode.Name+": "+reason)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer. No mode makes conditional decisions.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, attributes authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attributes))
}

// EvaluateConditions implements authorizer.Authorizer. It always fails, because no decision has conditions.
func (*Authorizer) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver. It returns the rules of all modes.
func (a *Authorizer) RulesFor(
	ctx context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	var errs []error
	incomplete := false
	for _, mode := range *a.modes.Load() {
		r, p, i, err := mode.RulesFor(ctx, who, namespace)
		resources, paths, incomplete = append(resources, r...), append(paths, p...), incomplete || i
		if err != nil {
			errs = append(errs, err)
		}
	}
	return resources, paths, incomplete, utilerrors.NewAggregate(errs)
}

// AlwaysAllow is the mode that allows every request.
type AlwaysAllow struct{}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (AlwaysAllow) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// RulesFor implements authorizer.RuleResolver.
func (AlwaysAllow) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	all := []string{"*"}
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
}

// AlwaysDeny is the mode that allows no request. It has no opinion, so that other modes can allow a request.
type AlwaysDeny struct{}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (AlwaysDeny) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "Everything is forbidden.", nil
}

// RulesFor implements authorizer.RuleResolver.
func (AlwaysDeny) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}
