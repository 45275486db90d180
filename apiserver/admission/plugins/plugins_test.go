package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/admission/plugins"
)

// write writes a file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newOptions returns options with a client of a server that does not run.
func newOptions(t *testing.T, selection plugins.Selection, file string) plugins.Options {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	return plugins.Options{
		Selection: selection, ConfigFile: file, Client: client, Dynamic: dynamicClient, Parameters: factory,
		OpenAPI:   client.Discovery().OpenAPIV3(),
		Informers: factory, Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(), Mapper: meta.MultiRESTMapper{},
		Services: webhook.NewDefaultServiceResolver(), Stopped: t.Context().Done(),
		Authentication: func(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return of },
		Serves:         func(schema.GroupVersionResource) bool { return true },
	}
}

// TestNew creates the plugins of several selections, in order. Only plugins whose configurations have rules have an
// index of rules.
func TestNew(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		selection plugins.Selection
		want      []string // names; * after the name of a plugin that New does not create, + for an index of rules
	}{
		"named": {
			plugins.Selection{Control: []string{"AlwaysDeny", "NamespaceLifecycle", "AlwaysAdmit", "Priority"}},
			[]string{"AlwaysAdmit", "NamespaceLifecycle*", "Priority", "AlwaysDeny"},
		},
		"none": {plugins.Selection{Control: []string{}}, nil},
		"extension": {
			plugins.Selection{Of: plugins.OfExtensions},
			[]string{
				"NamespaceLifecycle*", "MutatingAdmissionPolicy+", "MutatingAdmissionWebhook+", "ValidatingAdmissionPolicy+",
				"ValidatingAdmissionWebhook+",
			},
		},
		"quota": {plugins.Selection{Control: []string{"ResourceQuota"}}, []string{"ResourceQuota"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			created, err := plugins.New(newOptions(t, test.selection, ""))
			var got []string
			for _, plugin := range created {
				described := plugin.Name
				if plugin.Upstream == nil {
					described += "*"
				}
				if plugin.Rules != nil {
					described += "+"
				}
				got = append(got, described)
			}
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %v, %v, want %v", got, err, test.want)
			}
		})
	}
}

// TestNewDefaults creates the default plugins, which must be initialized completely.
func TestNewDefaults(t *testing.T) {
	t.Parallel()
	created, err := plugins.New(newOptions(t, plugins.Selection{}, ""))
	if err != nil {
		t.Fatal(err)
	}
	names, err := plugins.Enabled(plugins.Selection{})
	if err != nil || len(created) != len(names) {
		t.Fatalf("got %d plugins, want %v, %v", len(created), names, err)
	}
	for i, plugin := range created {
		if plugin.Name != names[i] {
			t.Errorf("plugin %d is %s, want %s", i, plugin.Name, names[i])
		}
		if plugin.Upstream == nil {
			continue
		}
		if !plugin.Upstream.Handles(admission.Create) && !plugin.Upstream.Handles(admission.Update) &&
			!plugin.Upstream.Handles(admission.Delete) {
			t.Errorf("%s handles no operation", plugin.Name)
		}
		if err := admission.ValidateInitialization(plugin.Upstream); err != nil {
			t.Errorf("%s: %v", plugin.Name, err)
		}
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "https://images.example.com"}}]
users: [{name: a}]
contexts: [{name: a, context: {cluster: a, user: a}}]
`

// configured returns the text of an admission configuration with a configuration of one plugin.
func configured(plugin, configuration string) string {
	return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: %s, %s}]\n",
		plugin, configuration)
}

// TestConfigurations has configurations of plugins. Check finds the same errors as New, without the dependencies of a
// server, and reads only the configurations of enabled plugins.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	images := write(t, "kubeconfig", kubeconfig)
	podSecurity := func(level string) string {
		return configured("PodSecurity", "configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: "+
			"PodSecurityConfiguration, defaults: {enforce: "+level+"}}")
	}
	imagePolicy := func(file string) string {
		return configured("ImagePolicyWebhook", "configuration: {imagePolicy: {kubeConfigFile: "+file+
			", allowTTL: 50, denyTTL: 50, retryBackoff: 500, defaultAllow: true}}")
	}
	limits := func(kind string) string {
		return configured("EventRateLimit", "configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: "+
			"Configuration, limits: [{type: "+kind+", qps: 5, burst: 10}]}")
	}
	for name, test := range map[string]struct {
		plugin, text string
		want         string // part of the error
	}{
		"pod security":               {"PodSecurity", podSecurity("baseline"), ""},
		"unknown level":              {"PodSecurity", podSecurity("magic"), "enforce"},
		"level of another plugin":    {"Priority", podSecurity("magic"), ""},
		"image policy":               {"ImagePolicyWebhook", imagePolicy(images), ""},
		"image policy, no file":      {"ImagePolicyWebhook", imagePolicy("/missing"), "/missing"},
		"event limits":               {"EventRateLimit", limits("Namespace"), ""},
		"unknown event limit":        {"EventRateLimit", limits("Moon"), "Moon"},
		"no admission file":          {"PodSecurity", "{apiVersion: v1, kind: Pod}", "plugin config"},
		"no YAML":                    {"PodSecurity", "{", "plugin config"},
		"defaults of another plugin": {"Priority", configured("LimitRanger", "configuration: {}"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			selection, file := plugins.Selection{Control: []string{test.plugin}}, write(t, "admission.yaml", test.text)
			_, failed := plugins.New(newOptions(t, selection, file))
			for function, err := range map[string]error{"Check": plugins.Check(selection, file), "New": failed} {
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: got the error %v, want %q", function, err, test.want)
				}
			}
		})
	}
}

// TestUnknownPlugin selects a plugin that does not exist.
func TestUnknownPlugin(t *testing.T) {
	t.Parallel()
	selection := plugins.Selection{Enable: []string{"Frobnication"}}
	const want = `enable-admission-plugins plugin "Frobnication" is unknown`
	if err := plugins.Check(selection, ""); err == nil || err.Error() != want {
		t.Errorf("Check: got the error %v", err)
	}
	if _, err := plugins.New(newOptions(t, selection, "")); err == nil || err.Error() != want {
		t.Errorf("New: got the error %v", err)
	}
	if err := plugins.Check(plugins.Selection{Control: []string{"PodSecurity"}}, "/missing"); err == nil {
		t.Error("Check of a missing file has no error")
	}
}
