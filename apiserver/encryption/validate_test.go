package encryption_test

import (
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/encryption/encryptiontest"
)

// TestValidate compares the errors of Validate with the errors of Load, which are kube-apiserver's. Load has a prefix,
// and also connects to the plugins.
func TestValidate(t *testing.T) {
	plugin := encryptiontest.Start(t, "1")
	directory := t.TempDir()
	for name, content := range map[string]string{
		"valid":            configuration(aescbc("one"), identity),
		"valid plugin":     configuration(kms("v2", plugin)),
		"empty":            "",
		"no content":       "{}",
		"no kind":          configuration(identity)[strings.Index(configuration(identity), "resources:"):],
		"no YAML":          "a: b: c",
		"another kind":     "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n",
		"unknown kind":     "apiVersion: apiserver.config.k8s.io/v1\nkind: Nothing\n",
		"no providers":     configuration(),
		"empty provider":   configuration("{}"),
		"unknown provider": configuration("{x: }"),
		"short key":        configuration("{aescbc: {keys: [{name: a, secret: YQ==}]}}"),
	} {
		file := write(t, filepath.Join(directory, "encryption.yaml"), content)
		compareErrors(t, name, file)
	}
	compareErrors(t, "no file", filepath.Join(directory, "missing.yaml"))
}

func compareErrors(t *testing.T, name, file string) {
	t.Helper()
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	for _, reload := range []bool{false, true} {
		loaded, err := encryption.Load(t.Context(), encryption.Options{File: file, Reload: reload})
		if err == nil {
			if loaded.Reloads() != reload {
				t.Errorf("%s: reloads is %t, want %t", name, loaded.Reloads(), reload)
			}
			loaded.Close()
		}
		want := strings.TrimPrefix(text(err), "error while parsing file: ")
		if got := text(encryption.Validate(file, reload)); got != want {
			t.Errorf("%s, with reload %t:\ngot  %s\nwant %s", name, reload, got, want)
		}
	}
}
