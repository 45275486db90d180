package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

const webhookKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://policy.example.com"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {token: x}}]
current-context: a
`

func webhook(file string) string {
	return `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- {type: RBAC, name: rbac}
- type: Webhook
  name: policy
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    authorizedTTL: 1m
    unauthorizedTTL: 1m
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: ` + desired.ConfigurationDirectory +
		"/authorization/" + file + `}
`
}

func TestCheck(t *testing.T) {
	const (
		authentication = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
		admission      = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
		audit          = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
		podSecurity    = "plugins: [{name: PodSecurity, configuration: {apiVersion: " +
			"pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, "
	)
	for name, c := range map[string]struct {
		part  string
		files map[string]string
		want  string // error; empty: valid
	}{
		"audit": {"audit", map[string]string{"config.yaml": audit + "rules: [{level: Metadata}]"}, ""},
		"audit level": {
			"audit", map[string]string{"config.yaml": audit + "rules: [{level: All}]"}, `loading audit policy file: `,
		},
		"no main file": {
			"audit", map[string]string{"other": ""}, "audit: ConfigMap x has no key config.yaml, but other; rename the key, " +
				"or name the main file in spec.audit.key",
		},
		"authentication": {
			"authentication",
			map[string]string{"config.yaml": authentication +
				"anonymous: {enabled: true, conditions: [{path: /readyz}, {path: /livez}]}"}, "",
		},
		"issuer": {
			"authentication",
			map[string]string{"config.yaml": authentication + "jwt: [{issuer: {url: 'http://x', audiences: [a]}}]"},
			"jwt[0].issuer.url",
		},
		"no anonymous requests": {
			"authentication", map[string]string{"config.yaml": authentication + "anonymous: {enabled: false}"},
			"/livez must be allowed",
		},
		"one anonymous path": {
			"authentication",
			map[string]string{"config.yaml": authentication + "anonymous: {enabled: true, conditions: [{path: /livez}]}"},
			"/readyz must be allowed",
		},
		"authorization": {
			"authorization",
			map[string]string{"config.yaml": webhook("policy.kubeconfig"), "policy.kubeconfig": webhookKubeconfig}, "",
		},
		"no kubeconfig": {
			"authorization", map[string]string{"config.yaml": webhook("policy.kubeconfig")},
			"/etc/quorate/configuration/authorization/policy.kubeconfig is not in the ConfigMap",
		},
		"invalid kubeconfig": {
			"authorization", map[string]string{"config.yaml": webhook("policy.kubeconfig"), "policy.kubeconfig": "x"},
			"couldn't get version/kind",
		},
		"no RBAC": {
			"authorization",
			map[string]string{"config.yaml": strings.Replace(webhook("k"), "- {type: RBAC, name: rbac}\n", "", 1),
				"k": webhookKubeconfig}, "Node and RBAC are required",
		},
		"admission": {
			"admission", map[string]string{"config.yaml": admission + podSecurity + "defaults: {enforce: baseline}}}]"}, "",
		},
		"level of PodSecurity": {
			"admission", map[string]string{"config.yaml": admission + podSecurity + "defaults: {enforce: none}}}]"},
			`"PodSecurity"`,
		},
		"configuration in a file": {
			"admission", map[string]string{"config.yaml": admission + "plugins: [{name: PodSecurity, path: other.yaml}]"},
			"other.yaml",
		},
		"the operator's file": {
			"admission", map[string]string{"config.yaml": admission + "plugins: [{name: PodSecurity, path: /etc/passwd}]"},
			"/etc/passwd is not in the ConfigMap",
		},
		"relative path": {
			"authorization",
			map[string]string{"config.yaml": webhook("k"),
				"k": strings.Replace(webhookKubeconfig, "token: x", "tokenFile: ../../../proc/self/environ",
					1)}, "environ is not in the ConfigMap",
		},
		"another part": {
			"admission",
			map[string]string{"config.yaml": admission +
				"plugins: [{name: PodSecurity, path: /etc/quorate/configuration/admission}]"}, "is not in the ConfigMap",
		},
		"egress": {
			"egress", map[string]string{"config.yaml": "apiVersion: apiserver.k8s.io/v1beta1\nkind: " +
				"EgressSelectorConfiguration\negressSelections: [{name: x, connection: {proxyProtocol: Direct}}]"}, "egress: ",
		},
		"tracing": {
			"tracing",
			map[string]string{"config.yaml": "apiVersion: apiserver.config.k8s.io/v1\nkind: " +
				"TracingConfiguration\nsamplingRatePerMillion: -1"}, "samplingRatePerMillion",
		},
	} {
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns"}}
		files := v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: "x"}}
		spec := &cluster.Spec
		switch c.part {
		case "audit":
			spec.Audit = &v1alpha1.Audit{ConfigurationFiles: files}
		case "authentication":
			spec.Authentication = &files
		case "authorization":
			spec.Authorization = &files
		case "admission":
			spec.Admission = &files
		case "egress":
			spec.Egress = &files
		case "tracing":
			spec.Tracing = &files
		}
		content := desired.Configuration{Files: map[string][]byte{}}
		for file, text := range c.files {
			content.Files[desired.FileKey(c.part, file)] = []byte(text)
		}
		_, err := Check(cluster, content)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "/tmp/")):
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
