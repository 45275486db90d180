package flowcontrol

import (
	"net/http"
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// schema returns a FlowSchema of the priority level global-default.
func schema(
	name string, precedence int32, subject flowcontrolv1.Subject, rules flowcontrolv1.PolicyRulesWithSubjects,
) *flowcontrolv1.FlowSchema {
	rules.Subjects = []flowcontrolv1.Subject{subject}
	return &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence:         precedence,
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "global-default"},
			Rules:                      []flowcontrolv1.PolicyRulesWithSubjects{rules},
		},
	}
}

func resources(verb, resource, namespace string, cluster bool) flowcontrolv1.PolicyRulesWithSubjects {
	rule := flowcontrolv1.ResourcePolicyRule{
		Verbs: []string{verb}, APIGroups: []string{"", "apps"}, Resources: []string{resource}, ClusterScope: cluster,
	}
	if namespace != "" {
		rule.Namespaces = []string{namespace}
	}
	return flowcontrolv1.PolicyRulesWithSubjects{ResourceRules: []flowcontrolv1.ResourcePolicyRule{rule}}
}

func paths(verb string, paths ...string) flowcontrolv1.PolicyRulesWithSubjects {
	return flowcontrolv1.PolicyRulesWithSubjects{
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{verb}, NonResourceURLs: paths}},
	}
}

func ofUser(name string) flowcontrolv1.Subject {
	return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}}
}

func ofGroup(name string) flowcontrolv1.Subject {
	return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: name}}
}

func ofAccount(namespace, name string) flowcontrolv1.Subject {
	return flowcontrolv1.Subject{
		Kind:           flowcontrolv1.SubjectKindServiceAccount,
		ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name},
	}
}

// TestMatchesAsUpstream compares the flow of each request with the flow that upstream's controller chooses.
func TestMatchesAsUpstream(t *testing.T) {
	schemas := []*flowcontrolv1.FlowSchema{
		schema("pods", 10, ofUser("jane"), resources("get", "pods", "*", false)),
		schema("status", 11, ofUser("jane"), resources("*", "pods/status", "a", false)),
		schema("nodes", 12, ofUser("*"), resources("list", "nodes", "", true)),
		schema("scale", 13, ofUser("*"), resources("*", "*", "c", false)),
		schema("account", 14, ofAccount("a", "c"), resources("*", "*", "*", true)),
		schema("accounts", 15, ofAccount("a", "*"), resources("delete", "*", "*", true)),
		schema("broken account", 15, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindServiceAccount},
			resources("*", "*", "*", true)),
		schema("openapi", 16, ofGroup("developers"), paths("get", "/openapi/*", "/version")),
		schema("prefix", 17, ofGroup("*"), paths("*", "/x", "/y*")),
		schema("other level", 18, ofUser("jane"), resources("update", "configmaps", "*", false)),
	}
	schemas[len(schemas)-1].Spec.PriorityLevelConfiguration.Name = "missing"
	c, _ := begin(t, 600, schemas...)
	users := []user.Info{
		admin, node, account, jane, &user.DefaultInfo{Name: "joe", Groups: []string{"developers", user.AllAuthenticated}},
		&user.DefaultInfo{Name: "system:serviceaccount:a:c"}, &user.DefaultInfo{Name: "system:serviceaccount:ab:c"},
		&user.DefaultInfo{
			Name: "system:serviceaccount:kube-system:x", Groups: []string{
				"system:serviceaccounts:kube-system", user.AllAuthenticated,
			},
		},
		&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		&user.DefaultInfo{Name: user.KubeScheduler, Groups: []string{user.AllAuthenticated}},
	}
	const core, leases = "/api/v1", "/apis/coordination.k8s.io/v1/namespaces/"
	var matched []string
	for _, target := range []string{
		core + "/pods", core + "/namespaces/a/pods/b", core + "/namespaces/a/pods/b/status",
		core + "/namespaces/c/configmaps/d", core + "/nodes", core + "/nodes/a", core + "/nodes/a/status",
		core + "/namespaces/a", "/apis/apps/v1/namespaces/c/deployments/a/scale", leases + "kube-node-lease/leases/a",
		leases + "kube-system/leases/a", core + "/namespaces/kube-system/endpoints/a", "/openapi/v3", "/openapi", "/version",
		"/versions", "/healthz", "/readyz/ping", "/x", "/x/y", "/xy", "/y", "/y/z", "/yz", "/",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			for _, who := range users {
				matched = append(matched, compareMatch(t, c, method, target, who))
			}
		}
	}
	for _, s := range schemas[:len(schemas)-1] {
		if s.Name != "broken account" && !slices.Contains(matched, s.Name) {
			t.Errorf("no request matches %s", s.Name)
		}
	}
}

// compareMatch compares the flows of one request, and returns the name of the FlowSchema.
func compareMatch(t *testing.T, c *Controller, method, target string, who user.Info) string {
	t.Helper()
	_, record := as(method, target, who)
	got, want, executed := c.Match(record), "", false
	c.upstream.Handle(record, flowcontrol.RequestDigest{RequestInfo: &record.Info, User: who},
		func(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration, distinguisher string) {
			want = schema.Name + " " + level.Name + " " + distinguisher
		},
		func() fcrequest.WorkEstimate { return fcrequest.WorkEstimate{InitialSeats: 1} }, nil, func() { executed = true })
	if is := got.Schema + " " + got.Level + " " + got.distinguisher(who, &record.Info); is != want || !executed {
		t.Errorf("%s %s by %s: got %s, want %s", method, target, who.GetName(), is, want)
	}
	return got.Schema
}
