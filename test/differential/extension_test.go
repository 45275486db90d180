package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/test/upstream"
)

// TestExtension compares the effects of admission webhooks and policies on both servers, the calls of webhooks, and the
// audit events.
func TestExtension(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pki, err := upstream.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	pair := startAudited(t, pki.Admin(0).CAData, "--admission-control-config-file="+credentials(t, pki))
	extensions, err := StartExtensions() // shared by both servers, so that errors contain the same ports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(extensions.Stop)
	for _, server := range []*Server{pair.Upstream, pair.Ours} {
		server.Extensions = extensions
	}
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/extension")
	if err != nil {
		t.Fatal(err)
	}
	policies := func(script *Script) bool { return script.Area == "policies" }
	t.Run("policies", func(t *testing.T) {
		for _, script := range scripts {
			if policies(script) {
				t.Run(script.Name, func(t *testing.T) {
					t.Parallel() // kube-apiserver may find the kinds of parameters only after 30 s
					compare(t, pair, Audited(script, script.Name), intended)
				})
			}
		}
	})
	// Sequentially, because a webhook may receive all writes.
	for _, script := range slices.DeleteFunc(scripts, policies) {
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, Audited(script, script.Name), intended) })
	}
	t.Run("metrics", func(t *testing.T) { compareSeries(t, pair) })
}

// admissionMetrics are the prefixes of the metrics of admission.
var admissionMetrics = []string{
	"apiserver_admission_", "apiserver_webhooks_", "apiserver_validating_admission_", "apiserver_mutating_admission_",
}

// compareSeries compares the metric series after the scripts. Their values depend on how often a script repeats a
// request and are not compared.
func compareSeries(t *testing.T, pair *Pair) {
	theirs, err := pair.Upstream.Series(t.Context(), admissionMetrics...)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := pair.Ours.Series(t.Context(), admissionMetrics...)
	if err != nil {
		t.Fatal(err)
	}
	byChance := func(series string) bool {
		// kube-apiserver's controllers create objects before their namespaces exist. Policies fail for up to 5 s until
		// they know a new custom kind.
		return strings.Contains(series, `name="NamespaceLifecycle",operation="CREATE",rejected="true"`) ||
			strings.Contains(series, `error_type="invalid_error",policy="mutating-custom"`)
	}
	theirs, ours = slices.DeleteFunc(theirs, byChance), slices.DeleteFunc(ours, byChance)
	if difference := cmp.Diff(theirs, ours); difference != "" || len(ours) == 0 {
		t.Errorf("(- kube-apiserver, + ours)\n%s", difference)
	}
}

// credentials writes the configuration of admission. Mutating webhooks get a token, validating webhooks a client
// certificate.
func credentials(t *testing.T, pki *upstream.PKI) string {
	t.Helper()
	client, err := pki.As(&rest.Config{}, "webhook-client")
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	plugins := ""
	for plugin, user := range map[string]*clientcmdapi.AuthInfo{
		"MutatingAdmissionWebhook":   {Token: "webhook-token"},
		"ValidatingAdmissionWebhook": {ClientCertificateData: client.CertData, ClientKeyData: client.KeyData},
	} {
		kubeconfig := clientcmdapi.NewConfig()
		kubeconfig.AuthInfos["*"] = user
		if err := clientcmd.WriteToFile(*kubeconfig, filepath.Join(directory, plugin)); err != nil {
			t.Fatal(err)
		}
		plugins += fmt.Sprintf(`
- name: %s
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s}`,
			plugin, filepath.Join(directory, plugin))
	}
	file := filepath.Join(directory, "admission.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:" + plugins + "\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
