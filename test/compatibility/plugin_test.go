package compatibility

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/encryption/encryptiontest"
	"quorate.dev/test/upstream"
)

// TestWithoutPlugin starts both servers while the KMS plugin is down: they are not ready and store no Secrets. When the
// plugin starts, they become ready. When it stops again, they can still read Secrets whose keys they have cached.
func TestWithoutPlugin(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	plugin := encryptiontest.Start(t, "1")
	plugin.Down()
	directory := t.TempDir()
	file := filepath.Join(directory, "encryption.yaml")
	content := strings.NewReplacer("ENDPOINT", plugin.Endpoint(), "3s",
		"500ms").Replace(encryptedAll[:strings.Index(encryptedAll, "- resources: [configmaps]")])
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	options := upstream.Options{
		Directory: directory, PKI: pki, Etcd: etcd.Endpoint, Answers: "/livez", Arguments: []string{
			"--encryption-provider-config=" + file, "--encryption-provider-config-automatic-reload",
		},
	}
	var both []*server
	for _, start := range []func(context.Context, upstream.Options) (*upstream.APIServer, error){
		upstream.StartKubernetes, upstream.StartQuorate,
	} {
		process, err := start(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		process.StopAfter(t)
		both = append(both, newServer(t, process.Name, process.Admin))
	}
	kubernetes, quorate := both[0], both[1]

	const failing = "[-]kms-providers failed: reason withheld"
	for _, s := range both {
		s.awaitText(t, "/readyz?verbose", func(text string) bool {
			return strings.Contains(text, failing) && strings.Count(text, "[-]") == 1
		})
	}
	if diff := cmp.Diff(kubernetes.checks(t), quorate.checks(t)); diff != "" || len(quorate.checks(t)["readyz"]) < 5 {
		t.Errorf("health checks (- kube-apiserver, + quorate)\n%s", diff)
	}
	const secrets = "/api/v1/namespaces/default/secrets"
	const body = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"NAME"}}`
	var refused []string
	for _, s := range both {
		code, answer, err := s.call(t.Context(), http.MethodPost, secrets, "application/json",
			[]byte(strings.ReplaceAll(body, "NAME", "refused")))
		if err != nil || code != http.StatusInternalServerError {
			t.Errorf("%s: creating without the plugin: %d %v %v", s.name, code, answer, err)
		}
		refused = append(refused, answer["message"].(string))
	}
	if refused[0] != refused[1] {
		t.Errorf("creating without the plugin: kube-apiserver: %s; quorate: %s", refused[0], refused[1])
	}

	plugin.Up(t)
	for _, s := range both {
		s.awaitText(t, "/readyz?verbose", func(text string) bool { return !strings.Contains(text, "[-]") })
	}
	for i, s := range both {
		s.create(t, secrets, strings.ReplaceAll(body, "NAME", "of-"+s.name))
		both[1-i].get(t, secrets+"/of-"+s.name)
	}
	if diff := cmp.Diff(kubernetes.families(t), quorate.families(t)); diff != "" || len(quorate.families(t)) < 10 {
		t.Errorf("metrics of encryption (- kube-apiserver, + quorate)\n%s", diff)
	}
	plugin.Down()
	for _, s := range both {
		s.get(t, secrets+"/of-kube-apiserver")
		s.get(t, secrets+"/of-quorate?resourceVersion=0")
		s.get(t, secrets)
	}
}

// text returns the body of a response with any status code.
func (s *server) text(t *testing.T, path string) string {
	t.Helper()
	response, err := s.send(t.Context(), http.MethodGet, path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func (s *server) awaitText(t *testing.T, path string, wanted func(string) bool) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 3*patience, true, func(context.Context) (bool, error) {
		last = s.text(t, path)
		return wanted(last), nil
	})
	if err != nil {
		t.Fatalf("%s: %s: %v, last\n%s", s.name, path, err, last)
	}
}

var encryptionChecks = regexp.MustCompile(
	`](etcd\S*|kms-\S+|informer-sync|poststarthook/start-(?:encryption|system)-\S+) `,
)

// checks returns the readiness checks before and after the checks of encryption, in their order.
func (s *server) checks(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, endpoint := range []string{"healthz", "livez", "readyz"} {
		for _, check := range encryptionChecks.FindAllStringSubmatch(s.text(t, "/"+endpoint+"?verbose"), -1) {
			found[endpoint] = append(found[endpoint], check[1])
		}
	}
	return found
}

var encryptionFamily = regexp.MustCompile(
	`(?m)^# TYPE (apiserver_(?:encryption_config|envelope|storage_(?:transformation|data_key|envelope))\S+)`,
)

func (s *server) families(t *testing.T) (names []string) {
	t.Helper()
	for _, found := range encryptionFamily.FindAllStringSubmatch(s.text(t, "/metrics"), -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	return names
}
