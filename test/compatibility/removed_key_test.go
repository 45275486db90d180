package compatibility

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

const oneKey = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers: [{aesgcm: {keys: [{name: NAME, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]
`

// TestRemovedKey removes the key of a Secret from the encryption configuration of a running server. After the reload,
// the Secret cannot be read, although the server has read it before. kube-apiserver is not started: it looks for
// changes of the file once per minute, returns 500 for the first of the reads, and serves the others from its cache.
func TestRemovedKey(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	directory := t.TempDir()
	file := filepath.Join(directory, "encryption.yaml")
	write := func(name string) {
		if err := os.WriteFile(file+".next", []byte(strings.ReplaceAll(oneKey, "NAME", name)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".next", file); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	process, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Etcd: etcd.Endpoint, Arguments: []string{
			"--encryption-provider-config=" + file, "--encryption-provider-config-automatic-reload",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, process.Name, process.Admin)
	const secrets, configMaps = "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/configmaps"
	s.create(t, secrets, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`)
	s.get(t, secrets+"/a")
	s.get(t, secrets)

	write("two")
	s.awaitCode(t, secrets+"/a", http.StatusInternalServerError)
	for path, want := range map[string]int{
		secrets:                        http.StatusInternalServerError,
		secrets + "/a":                 http.StatusInternalServerError,
		secrets + "?resourceVersion=0": http.StatusTooManyRequests,
		configMaps:                     http.StatusOK,
	} {
		if code, answer, err := s.call(t.Context(), http.MethodGet, path, "application/json", nil); err != nil ||
			code != want {
			t.Errorf("%s with the removed key: %d %v %v, want %d", path, code, answer, err, want)
		}
	}
}

// awaitCode waits until a GET request returns a status code.
func (s *server) awaitCode(t *testing.T, path string, want int) {
	t.Helper()
	var last int
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 3*patience, true, func(
		ctx context.Context,
	) (done bool, err error) {
		last, _, err = s.call(ctx, http.MethodGet, path, "application/json", nil)
		return last == want, err
	})
	if err != nil {
		t.Fatalf("%s: last %d, want %d: %v", path, last, want, err)
	}
}
