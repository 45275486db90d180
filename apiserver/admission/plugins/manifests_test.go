package plugins_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/apis/authentication"

	"quorate.dev/apiserver/admission/plugins"
)

// staticWebhook is a manifest of a webhook that denies writes of widgets, because no server has its address.
const staticWebhook = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: widgets.static.k8s.io}
webhooks:
- name: widgets.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: [example.com], apiVersions: [v1], resources: [widgets], operations: ["*"]}]
`

// webhookFile returns an admission configuration with a directory of static webhooks.
func webhookFile(t *testing.T, directory string) string {
	t.Helper()
	return write(t, "admission.yaml", configured("ValidatingAdmissionWebhook", "configuration: {apiVersion: "+
		"apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, staticManifestsDir: "+directory+"}"))
}

// TestStaticManifests checks that a plugin with static manifests also gets writes that no rule of a stored
// configuration selects.
func TestStaticManifests(t *testing.T) {
	t.Parallel()
	file := webhookFile(t, filepath.Dir(write(t, "webhook.yaml", staticWebhook)))
	selection := plugins.Selection{Control: []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"}}
	options, client := newOptions(t, selection, file), fake.NewClientset()
	options.Client, options.Informers = client, informers.NewSharedInformerFactory(client, 0)
	created, err := plugins.New(options)
	if err != nil {
		t.Fatal(err)
	}
	options.Informers.Start(t.Context().Done())
	selected := func(plugin plugins.Plugin) bool {
		return plugin.Rules.MaySelect("CREATE", schema.GroupResource{Group: "a", Resource: "b"}, "")
	}
	// An index selects all writes until its informer has synced.
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return !selected(created[0]), nil }); err != nil {
		t.Errorf("%s selects a write without configurations", created[0].Name)
	}
	options.Informers.WaitForCacheSync(t.Context().Done())
	if !selected(created[1]) {
		t.Errorf("%s does not select a write in spite of its static webhook", created[1].Name)
	}
}

// TestInvalidManifests checks that the server does not start with manifests that cannot be read.
func TestInvalidManifests(t *testing.T) {
	t.Parallel()
	selection := plugins.Selection{Control: []string{"ValidatingAdmissionWebhook"}}
	for name, test := range map[string]struct{ text, want string }{
		"another kind": {"{apiVersion: v1, kind: Pod, metadata: {name: a}}", "failed to load static webhook manifests"},
		"no name": {
			strings.Replace(staticWebhook, "widgets.static.k8s.io", "", 1), "failed to load static webhook manifests",
		},
	} {
		file := webhookFile(t, filepath.Dir(write(t, "webhook.yaml", test.text)))
		if _, err := plugins.New(newOptions(t, selection, file)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
	}
}

// TestReviewsSkipWebhooks checks that the review of a token is admitted before the configurations of webhooks are
// known, because webhooks are not called for reviews.
func TestReviewsSkipWebhooks(t *testing.T) {
	t.Parallel()
	selection := plugins.Selection{Control: []string{"ValidatingAdmissionWebhook"}}
	created, err := plugins.New(newOptions(t, selection, ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := created[0].Upstream.(initializer.WantsExcludedAdmissionResources); !ok {
		t.Fatal("webhooks have no excluded resources")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	attributes := admission.NewAttributesRecord(&authentication.TokenReview{}, nil,
		authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), "", "",
		authenticationv1.SchemeGroupVersion.WithResource("tokenreviews"), "", admission.Create, nil, false, nil)
	if err := created[0].Upstream.(admission.ValidationInterface).Validate(ctx, attributes, nil); err != nil {
		t.Errorf("got the error %v", err)
	}
}
