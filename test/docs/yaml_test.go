package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/preflight"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/docs/guide"
)

// kinds are the kinds of which a block may be a fragment. test/endtoend also sends complete objects to a server.
var kinds = map[string]func() any{
	"ApiServerCluster":        func() any { return &v1alpha1.ApiServerCluster{} },
	"ApiServerBackup":         func() any { return &v1alpha1.ApiServerBackup{} },
	"ApiServerBackupSchedule": func() any { return &v1alpha1.ApiServerBackupSchedule{} },
	"ApiServerKubeconfig":     func() any { return &v1alpha1.ApiServerKubeconfig{} },
}

// configurations are the fields of the API server's configuration that contain names of files, by the kind in the file.
var configurations = map[string]func(c *config.Config, file string){
	"Policy": func(c *config.Config, file string) { c.Audit.PolicyFile, c.Audit.Log.Path = file, "-" },
	"AuthenticationConfiguration": func(c *config.Config, file string) {
		c.Authentication.ConfigFile = file
	},
	"AuthorizationConfiguration": func(c *config.Config, file string) {
		c.Authorization.ConfigFile, c.Authorization.Modes = file, nil
	},
	"EncryptionConfiguration":     func(c *config.Config, file string) { c.Etcd.EncryptionConfig = file },
	"TracingConfiguration":        func(c *config.Config, file string) { c.Tracing.ConfigFile = file },
	"EgressSelectorConfiguration": func(c *config.Config, file string) { c.API.EgressSelectorFile = file },
}

// TestYAML validates blocks of YAML. Fields that do not exist are errors, and configuration files are loaded with the
// server's loaders.
func TestYAML(t *testing.T) {
	checked := 0
	for document, text := range sources(t) {
		for _, block := range blocks(t, document, text) {
			if block.Language != "yaml" {
				continue
			}
			known, err := validate(t, block)
			if err != nil {
				t.Errorf("%s: %v", block, err)
			}
			if known {
				checked++
			}
		}
	}
	if checked < 15 {
		t.Errorf("only %d blocks are of a known kind", checked)
	}
}

var kindLine = regexp.MustCompile(`(?m)^kind: (\S+)$`)

// validate reports whether the kind of a block is known, and returns the error in the block.
func validate(t *testing.T, block guide.Block) (known bool, err error) {
	t.Helper()
	kind := block.Fragment
	if match := kindLine.FindStringSubmatch(block.Text); kind == "" && match != nil {
		kind = match[1]
	}
	if object := kinds[kind]; object != nil {
		return true, yaml.UnmarshalStrict([]byte(block.Text), object())
	}
	if block.Fragment != "" {
		return false, fmt.Errorf("there is no kind %s", block.Fragment)
	}
	if set := configurations[kind]; set != nil {
		return true, load(t, block.Text, set)
	}
	var anything any
	return false, yaml.UnmarshalStrict([]byte(block.Text), &anything)
}

// load loads a configuration file with the server's loader.
func load(t *testing.T, text string, set func(*config.Config, string)) error {
	t.Helper()
	directory := t.TempDir()
	text = strings.ReplaceAll(text, "/etc/kubernetes", directory)
	const kubeconfig = "{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: " +
		"'https://a.example.com'}}], users: [{name: a}], contexts: [{name: a, context: {cluster: a, user: a}}], " +
		"current-context: a}"
	for _, file := range regexp.MustCompile(regexp.QuoteMeta(directory)+`\S+\.kubeconfig`).FindAllString(text, -1) {
		check(t, os.MkdirAll(filepath.Dir(file), 0o700))
		check(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	}
	file := filepath.Join(directory, "file.yaml")
	check(t, os.WriteFile(file, []byte(text), 0o600))
	c := config.Default()
	set(c, file)
	_, err := preflight.Check(c)
	return err
}

func TestYAMLIsStrict(t *testing.T) {
	for _, wrong := range []guide.Block{
		{Text: "apiVersion: quorate.dev/v1alpha1\nkind: ApiServerCluster\nspec: {replica: 3}\n"},
		{Text: "spec: {encryption: {secret: {}}}\n", Fragment: "ApiServerBackup"},
		{Text: "spec: {}\n", Fragment: "Frobnicator"},
		{Text: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n"},
		{
			Text: "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: [{issuer: {url: " +
				"'http://x'}}]\n",
		},
		{Text: "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: []\n"},
		{Text: "a: 1\na: 2\n"},
	} {
		if _, err := validate(t, wrong); err == nil {
			t.Errorf("%s has no error", wrong.Text)
		}
	}
}
