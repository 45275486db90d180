package differential

import (
	"path/filepath"
	"regexp"
	"testing"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"quorate.dev/test/upstream"
)

// TestEncryption compares both servers with the same keys. Scripts store values that can be read but are stale, and
// values that cannot be read.
func TestEncryption(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	file, err := filepath.Abs("testdata/encryption/keys.yaml")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/encryption")
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"default": nil,
		"unsafe":  {"--feature-gates=AllowUnsafeMalformedObjectDeletion=true"}, // runs the script of that name
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair := startPairOf(t, append(flags, "--encryption-provider-config="+file)...)
			for _, server := range []*Server{pair.Upstream, pair.Ours} {
				server.Etcd.decrypt = decryptWith(t, file)
			}
			for _, script := range scripts {
				if (script.Name == "unsafe") == (name == "unsafe") {
					t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
				}
			}
		})
	}
}

var encryptedPrefix = regexp.MustCompile(`^k8s:enc:[a-z]+:v[12]:[^:]+:`)

// decryptWith returns a function for Recorder.decrypt. It returns values unchanged if their key is not in the file.
func decryptWith(t *testing.T, file string) func(Write) ([]byte, string) {
	t.Helper()
	configuration, err := encryptionconfig.LoadEncryptionConfig(t.Context(), file, false, "differential")
	if err != nil {
		t.Fatal(err)
	}
	return func(w Write) ([]byte, string) {
		prefix := encryptedPrefix.Find(w.Value)
		for _, transformer := range configuration.Transformers {
			plain, _, err := transformer.TransformFromStorage(t.Context(), w.Value, value.DefaultContext(w.Key))
			if err == nil && prefix != nil {
				return plain, string(prefix)
			}
		}
		return w.Value, ""
	}
}
