package filters

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
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

	"quorate.dev/apiserver/request"
)

// impersonate lets a user act as another, when it may.
//
// There are several ways to be allowed to, tried from the narrowest: as the node a service account's pod runs on, as
// any node, as a service account, as another user (each of these also needs leave for what is asked then, verb
// "impersonate-on:WAY:VERB"), and without such limits, verb "impersonate".
type impersonate struct {
	next       http.Handler
	authorizer authorizer.Authorizer
}

func (f *impersonate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wanted, err := wantedUser(r.Header)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if wanted == nil {
		f.next.ServeHTTP(w, r)
		return
	}
	record := request.From(r.Context())
	fillAttributes(record)
	become, err := f.find(record, wanted, &record.Attributes)
	if err != nil {
		refuse(w, r, err)
		return
	}
	record.User = become
	f.next.ServeHTTP(w, r)
}

// find returns the user to act as by the first way that is allowed, or the first way's refusal.
func (f *impersonate) find(ctx context.Context, wanted *user.DefaultInfo, asked *authorizer.AttributesRecord) (user.Info, error) {
	var refusal error
	for _, way := range waysFor(wanted, asked.User) {
		become, err := way.try(ctx, f.authorizer, wanted, asked)
		if err == nil {
			return become, nil
		}
		if refusal == nil {
			refusal = err
		}
	}
	return nil, refusal
}

// wantedUser reads and removes the impersonation headers. It returns nil when there are none.
func wantedUser(headers http.Header) (*user.DefaultInfo, error) {
	if !hasImpersonation(headers) {
		return nil, nil
	}
	wanted := &user.DefaultInfo{
		Name:   headers.Get(authenticationv1.ImpersonateUserHeader),
		UID:    headers.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(headers[authenticationv1.ImpersonateGroupHeader]),
	}
	hasExtra := false
	for header, values := range headers {
		key, isExtra := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !isExtra {
			continue
		}
		hasExtra = true
		if wanted.Extra == nil {
			wanted.Extra = make(map[string][]string)
		}
		key = unescapeKey(strings.ToLower(key))
		wanted.Extra[key] = append(wanted.Extra[key], values...)
	}
	if wanted.Name == "" {
		if wanted.UID != "" || len(wanted.Groups) > 0 || hasExtra {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", wanted))
		}
		return nil, nil
	}
	for header := range headers {
		if strings.HasPrefix(header, "Impersonate-") {
			delete(headers, header)
		}
	}
	return wanted, nil
}

func hasImpersonation(headers http.Header) bool {
	for header := range headers {
		if strings.HasPrefix(header, "Impersonate-") {
			return true
		}
	}
	return false
}

func unescapeKey(key string) string {
	if decoded, err := url.PathUnescape(key); err == nil {
		return decoded
	}
	return key
}

// way is one way to be allowed to act as another user.
type way struct {
	name  string // "" for the way without limits
	group string // API group of users and groups in what is asked of authorization
}

// waysFor returns the ways that apply, narrowest first.
func waysFor(wanted *user.DefaultInfo, by user.Info) []way {
	constrained := func(name string) way { return way{name: name, group: authenticationv1.GroupName} }
	nameOnly := wanted.UID == "" && len(wanted.Groups) == 0 && len(wanted.Extra) == 0
	node, isNode := nodeName(wanted.Name)
	_, _, notServiceAccount := serviceaccount.SplitUsername(wanted.Name)
	var ways []way
	switch {
	case isNode && nameOnly:
		if runsOn(by, node) {
			ways = append(ways, constrained("associated-node"))
		}
		ways = append(ways, constrained("arbitrary-node"))
	case notServiceAccount == nil && nameOnly:
		ways = append(ways, constrained("serviceaccount"))
	case !isNode && notServiceAccount != nil:
		ways = append(ways, constrained("user-info"))
	}
	return append(ways, way{})
}

func nodeName(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// runsOn tells whether a user is a service account whose token is bound to a pod on the node.
func runsOn(by user.Info, node string) bool {
	if _, _, err := serviceaccount.SplitUsername(by.GetName()); err != nil {
		return false
	}
	return slices.Equal(by.GetExtra()[serviceaccount.NodeNameKey], []string{node})
}

// try asks for everything that acting as the wanted user this way needs, and returns the complete user.
func (m way) try(ctx context.Context, a authorizer.Authorizer, wanted *user.DefaultInfo, asked *authorizer.AttributesRecord) (user.Info, error) {
	become := *wanted
	if m.name != "" {
		on := *asked
		on.Verb = "impersonate-on:" + m.name + ":" + asked.Verb
		if err := check(ctx, a, &on); err != nil {
			return nil, err
		}
	}
	for _, needed := range m.needed(wanted, asked.User) {
		if needed.reserved != "" {
			return nil, request.Forbidden(&needed.AttributesRecord, needed.reserved)
		}
		if err := check(ctx, a, &needed.AttributesRecord); err != nil {
			return nil, err
		}
	}
	if namespace, _, err := serviceaccount.SplitUsername(wanted.Name); err == nil && len(wanted.Groups) == 0 {
		become.Groups = serviceaccount.MakeGroupNames(namespace)
	}
	if _, isNode := nodeName(wanted.Name); isNode && m.name != "" {
		become.Groups = []string{user.NodesGroup}
	}
	become.Groups = withDefaultGroup(become.Name, become.Groups)
	return &become, nil
}

// question is something the requester must be allowed.
type question struct {
	authorizer.AttributesRecord
	reserved string // why nobody is allowed this; empty: somebody may be
}

// needed returns the questions to ask in turn: about the name, the UID, each group, each extra value.
func (m way) needed(wanted *user.DefaultInfo, by user.Info) []question {
	var questions []question
	ask := func(group, resource, subresource, namespace, name, reserved string) {
		verb := "impersonate"
		if m.name != "" {
			verb += ":" + m.name
		}
		questions = append(questions, question{reserved: reserved, AttributesRecord: authorizer.AttributesRecord{
			User: by, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource, Subresource: subresource,
			Namespace: namespace, Name: name, ResourceRequest: true,
		}})
	}
	resource, namespace, name := m.resourceOf(wanted.Name)
	ask(m.group, resource, "", namespace, name, "")
	if wanted.UID != "" {
		ask(authenticationv1.GroupName, "uids", "", "", wanted.UID, "")
	}
	if reserved, group := reservedGroup(wanted.Groups); m.name != "" && reserved != "" {
		ask(m.group, "groups", "", "", group, reserved)
	}
	for _, group := range wanted.Groups {
		ask(m.group, "groups", "", "", group, "")
	}
	if reserved := reservedExtra(wanted.Extra); m.name != "" && reserved != "" {
		ask(authenticationv1.GroupName, "userextras", "", "", "", reserved)
	}
	for key, values := range wanted.Extra {
		for _, value := range values {
			ask(authenticationv1.GroupName, "userextras", key, "", value, "")
		}
	}
	return questions
}

// resourceOf returns the resource that stands for a user of the name.
func (m way) resourceOf(user string) (resource, namespace, name string) {
	namespace, account, err := serviceaccount.SplitUsername(user)
	node, isNode := nodeName(user)
	switch {
	case err == nil:
		return "serviceaccounts", namespace, account
	case isNode && m.name == "associated-node":
		return "nodes", "", "*"
	case isNode && m.name != "":
		return "nodes", "", node
	}
	return "users", "", user
}

// reservedGroup returns why one of the groups is for nobody, and which.
func reservedGroup(groups []string) (reason, group string) {
	if slices.Contains(groups, "") {
		return "impersonating the empty string group is not allowed", ""
	}
	if slices.Contains(groups, user.SystemPrivilegedGroup) {
		return "impersonating the system:masters group is not allowed", user.SystemPrivilegedGroup
	}
	return "", ""
}

// reservedExtra returns why one of the extra values is for nobody.
func reservedExtra(extra map[string][]string) string {
	for key, values := range extra {
		if key == "" {
			return "impersonating the empty string key in extra is not allowed"
		}
		if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return fmt.Sprintf("impersonating an invalid key in extra is not allowed: %v", err)
		}
		if slices.Contains(values, "") {
			return "impersonating the empty string value in extra is not allowed"
		}
	}
	return ""
}

func check(ctx context.Context, a authorizer.Authorizer, attributes *authorizer.AttributesRecord) error {
	decision, reason, err := a.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow { // also when part of the policy could not be evaluated
		return nil
	}
	if err != nil {
		reason = strings.TrimSuffix(err.Error()+": "+reason, ": ")
	}
	return request.Forbidden(attributes, reason)
}

// withDefaultGroup adds the group of all who are, or are not, authenticated.
func withDefaultGroup(name string, groups []string) []string {
	if name == user.Anonymous {
		if slices.Contains(groups, user.AllUnauthenticated) {
			return groups
		}
		return append(groups, user.AllUnauthenticated)
	}
	if slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return groups
	}
	return append(groups, user.AllAuthenticated)
}
