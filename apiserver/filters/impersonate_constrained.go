package filters

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"quorate.dev/apiserver/request"
)

// constrainedImpersonation tries the modes of impersonation (KEP-5284), beginning with the one that permits least: the
// node that the pod of a service account runs on, any node, a service account, another user, and the legacy mode
// without constraints.
//
// As in kube-apiserver, the mode that last succeeded for the requestor is tried first, and the client gets the error of
// the first mode. The groups of a node and the text of an error therefore depend on earlier requests of the same user.
// kube-apiserver caches successes for ten seconds; here every request is authorized, so that a revoked permission takes
// effect immediately.
type constrainedImpersonation struct {
	authorizer authorizer.UnconditionalAuthorizer
	// last maps hashOfName(requestor) to an index in modes. It is safe for concurrent use.
	last    *lru.Cache
	metrics *Metrics
	clock   clock.PassiveClock
}

// maxImpersonators is the number of requestors whose last successful mode is cached, as in kube-apiserver.
const maxImpersonators = 10_000

func newConstrainedImpersonation(options Options) *constrainedImpersonation {
	return &constrainedImpersonation{
		authorizer: options.Authorizer, last: lru.New(maxImpersonators), metrics: options.Metrics, clock: options.Clock,
	}
}

func (c *constrainedImpersonation) invalid(wanted *user.DefaultInfo) error {
	return noUserName("requested %#v without impersonating a user name", wanted)
}

func (c *constrainedImpersonation) impersonate(
	ctx context.Context, wanted *user.DefaultInfo, attributes authorizer.Attributes,
) (user.Info, string, error) {
	started := c.clock.Now()
	impersonated, mode, err := c.firstAllowed(ctx, wanted, attributes)
	c.metrics.impersonated(mode, err == nil, c.clock.Since(started))
	if err != nil || mode == legacyMode {
		return impersonated, "", err
	}
	return impersonated, verbOfMode(mode), nil
}

// firstAllowed returns the impersonated user and the name of the first mode that allows the impersonation.
func (c *constrainedImpersonation) firstAllowed(
	ctx context.Context, wanted *user.DefaultInfo, attributes authorizer.Attributes,
) (user.Info, string, error) {
	requestor := hashOfName(attributes.GetUser().GetName())
	order := []int{0, 1, 2, 3, 4}
	if last, known := c.last.Get(requestor); known {
		order = append([]int{last.(int)}, slices.DeleteFunc(order, func(i int) bool { return i == last })...)
	}
	var refusal error
	for _, i := range order {
		mode := modes[i]
		if !mode.applies(wanted, attributes.GetUser()) {
			continue
		}
		a := &attempt{mode: mode, authorizer: c.authorizer, metrics: c.metrics, clock: c.clock}
		become, err := a.run(ctx, wanted, attributes)
		if err == nil {
			c.last.Add(requestor, i)
			return become, mode.name, nil
		}
		if refusal == nil {
			refusal = err
		}
	}
	return nil, "", refusal
}

// hashOfName returns a hash of fixed size, which bounds the memory of a cache entry. A collision affects only the order
// in which modes are tried.
func hashOfName(name string) [16]byte {
	h := fnv.New128a()
	_, _ = h.Write([]byte(name))
	return [16]byte(h.Sum(nil))
}

// impersonationMode is a set of permissions that together allow impersonation.
type impersonationMode struct {
	// name is part of the verbs "impersonate:NAME" and "impersonate-on:NAME:VERB", except for legacyMode.
	name    string
	applies func(wanted *user.DefaultInfo, requestor user.Info) bool
}

const (
	associatedNodeMode = "associated-node"
	legacyMode         = "legacy"
)

// modes has the modes in the order in which they are tried. The last mode applies to every request.
var modes = [...]*impersonationMode{
	{associatedNodeMode, func(wanted *user.DefaultInfo, requestor user.Info) bool {
		node, isNode := nodeName(wanted.Name)
		return isNode && nameOnly(wanted) && runsOn(requestor, node)
	}},
	{"arbitrary-node", func(wanted *user.DefaultInfo, _ user.Info) bool {
		return isNode(wanted.Name) && nameOnly(wanted)
	}},
	{"serviceaccount", func(wanted *user.DefaultInfo, _ user.Info) bool {
		return isServiceAccount(wanted.Name) && nameOnly(wanted)
	}},
	{"user-info", func(wanted *user.DefaultInfo, _ user.Info) bool {
		return !isNode(wanted.Name) && !isServiceAccount(wanted.Name)
	}},
	{legacyMode, func(*user.DefaultInfo, user.Info) bool { return true }},
}

func (m *impersonationMode) constrained() bool { return m.name != legacyMode }

// verb returns the verb that must be allowed for each part of the impersonated user.
func (m *impersonationMode) verb() string {
	if !m.constrained() {
		return "impersonate"
	}
	return verbOfMode(m.name)
}

func verbOfMode(name string) string { return "impersonate:" + name }

// group returns the API group in which users and groups are authorized.
func (m *impersonationMode) group() string {
	if !m.constrained() {
		return ""
	}
	return authenticationv1.GroupName
}

func nameOnly(wanted *user.DefaultInfo) bool {
	return wanted.UID == "" && len(wanted.Groups) == 0 && len(wanted.Extra) == 0
}

func nodeName(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

func isNode(name string) bool {
	_, ok := nodeName(name)
	return ok
}

func isServiceAccount(name string) bool {
	_, _, err := serviceaccount.SplitUsername(name)
	return err == nil
}

// runsOn reports whether a user is a service account whose token is bound to a pod on the node.
func runsOn(requestor user.Info, node string) bool {
	return isServiceAccount(requestor.GetName()) &&
		slices.Equal(requestor.GetExtra()[serviceaccount.NodeNameKey], []string{node})
}

// attempt evaluates one mode of impersonation for one request.
type attempt struct {
	mode       *impersonationMode
	authorizer authorizer.UnconditionalAuthorizer
	metrics    *Metrics
	clock      clock.PassiveClock
}

// run returns the impersonated user with its implied groups, or the error of the first authorization check that fails.
func (a *attempt) run(
	ctx context.Context, wanted *user.DefaultInfo, attributes authorizer.Attributes,
) (user.Info, error) {
	requestor := attributes.GetUser()
	if a.mode.name == associatedNodeMode {
		requestor = associatedRequestor(requestor)
	}
	if a.mode.constrained() {
		on := onBehalf{Attributes: attributes, mode: a.mode.name, requestor: requestor}
		if err := a.check(ctx, on); err != nil {
			return nil, err
		}
	}
	if err := a.checkName(ctx, wanted.Name, requestor); err != nil {
		return nil, err
	}
	if wanted.UID != "" {
		if err := a.check(ctx, a.attributes(requestor, authenticationv1.GroupName, "uids", wanted.UID)); err != nil {
			return nil, err
		}
	}
	if err := a.checkGroups(ctx, wanted.Groups, requestor); err != nil {
		return nil, err
	}
	if err := a.checkExtra(ctx, wanted.Extra, requestor); err != nil {
		return nil, err
	}
	return a.complete(wanted), nil
}

// complete returns the impersonated user with the implied groups of service accounts, nodes and authenticated users.
func (a *attempt) complete(wanted *user.DefaultInfo) user.Info {
	impersonated := *wanted
	namespace, _, err := serviceaccount.SplitUsername(wanted.Name)
	switch {
	case err == nil && len(wanted.Groups) == 0:
		impersonated.Groups = serviceaccount.MakeGroupNames(namespace)
	case a.mode.constrained() && isNode(wanted.Name):
		impersonated.Groups = []string{user.NodesGroup}
	}
	impersonated.Groups = withDefaultGroup(impersonated.Name, impersonated.Groups)
	return &impersonated
}

// checkName authorizes the resource that represents the user: nodes, serviceaccounts or users.
func (a *attempt) checkName(ctx context.Context, name string, requestor user.Info) error {
	needed := a.attributes(requestor, a.mode.group(), "users", name)
	if node, isNode := nodeName(name); isNode && a.mode.constrained() {
		needed.Resource, needed.Name = "nodes", node
		if a.mode.name == associatedNodeMode {
			needed.Name = "*"
		}
	}
	if namespace, account, err := serviceaccount.SplitUsername(name); err == nil {
		needed.Resource, needed.Namespace, needed.Name = "serviceaccounts", namespace, account
	}
	return a.check(ctx, needed)
}

// manyChecks is the minimum number of groups or extra values for which a permission for "*" is checked before the
// individual permissions, as in kube-apiserver.
const manyChecks = 4

func (a *attempt) checkGroups(ctx context.Context, groups []string, requestor user.Info) error {
	needed := a.attributes(requestor, a.mode.group(), "groups", "")
	if a.mode.constrained() {
		if slices.Contains(groups, "") {
			return request.Forbidden(needed, "impersonating the empty string group is not allowed")
		}
		if slices.Contains(groups, user.SystemPrivilegedGroup) {
			needed.Name = user.SystemPrivilegedGroup
			return request.Forbidden(needed, "impersonating the system:masters group is not allowed")
		}
		if needed.Name = "*"; len(groups) >= manyChecks && a.check(ctx, needed) == nil {
			return nil
		}
	}
	for _, group := range groups {
		needed.Name = group
		if err := a.check(ctx, needed); err != nil {
			return err
		}
	}
	return nil
}

func (a *attempt) checkExtra(ctx context.Context, extra map[string][]string, requestor user.Info) error {
	needed := a.attributes(requestor, authenticationv1.GroupName, "userextras", "")
	if a.mode.constrained() && len(extra) > 0 {
		if err := validateExtra(extra); err != nil {
			return request.Forbidden(needed, err.Error())
		}
		needed.Subresource, needed.Name = "*", "*"
		if hasManyValues(extra) && a.check(ctx, needed) == nil {
			return nil
		}
	}
	for _, key := range sortedKeys(extra) {
		for _, value := range extra[key] {
			needed.Subresource, needed.Name = key, value
			if err := a.check(ctx, needed); err != nil {
				return err
			}
		}
	}
	return nil
}

// validateExtra rejects keys and values that authorization rules cannot express or that authenticators do not produce.
func validateExtra(extra map[string][]string) error {
	for _, key := range sortedKeys(extra) {
		if key == "" {
			return fmt.Errorf("impersonating the empty string key in extra is not allowed")
		}
		if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
		}
		// Only percent-encoding preserves upper case in a header name.
		if key != strings.ToLower(key) {
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
		}
		if slices.Contains(extra[key], "") {
			return fmt.Errorf("impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}

func hasManyValues(extra map[string][]string) bool {
	values := 0
	for _, of := range extra {
		values += len(of)
	}
	return values >= manyChecks
}

func (a *attempt) attributes(requestor user.Info, group, resource, name string) *authorizer.AttributesRecord {
	return &authorizer.AttributesRecord{
		User: requestor, Verb: a.mode.verb(), APIGroup: group, APIVersion: "v1", Resource: resource, Name: name,
		ResourceRequest: true,
	}
}

// check returns a Forbidden error unless the authorizer allows the attributes.
func (a *attempt) check(ctx context.Context, attributes authorizer.Attributes) error {
	started := a.clock.Now()
	decision, reason, err := a.authorizer.Authorize(ctx, attributes)
	// A request can be allowed although part of the policy could not be evaluated, which err reports.
	allowed := decision == authorizer.DecisionAllow
	a.metrics.impersonationChecked(a.mode.name, allowed, a.clock.Since(started))
	switch {
	case allowed:
		return nil
	case apierrors.IsForbidden(err):
		return err
	case err != nil:
		reason = strings.TrimSuffix(err.Error()+": "+reason, ": ")
	}
	return request.Forbidden(attributes, reason)
}

// onBehalf has the attributes of the request itself, with the verb that allows the requestor to send it while
// impersonating.
type onBehalf struct {
	authorizer.Attributes
	mode      string
	requestor user.Info
}

// GetUser implements authorizer.Attributes.
func (o onBehalf) GetUser() user.Info { return o.requestor }

// GetVerb implements authorizer.Attributes.
func (o onBehalf) GetVerb() string { return "impersonate-on:" + o.mode + ":" + o.Attributes.GetVerb() }

// associatedRequestor returns the requestor with the keys of its extra instead of the values. Rules for such a
// requestor let a service account impersonate the node of its own pod, whichever node that is, because the name of the
// node is the value of a key.
func associatedRequestor(requestor user.Info) user.Info {
	return &user.DefaultInfo{
		Name: requestor.GetName(), UID: requestor.GetUID(), Groups: requestor.GetGroups(),
		Extra: map[string][]string{"authentication.kubernetes.io/associated-node-keys": sortedKeys(requestor.GetExtra())},
	}
}
