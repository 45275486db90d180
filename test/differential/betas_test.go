package differential

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"quorate.dev/test/upstream"
)

// asked are the flags that enable all APIs that kube-apiserver does not serve by default.
var asked = []string{
	"--runtime-config=api/all=true",
	"--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true,GenericWorkload=true,StorageVersionMigrator=true",
}

// TestBetas enables all APIs in both servers. It compares discovery, and the life cycle of every resource in a version
// that is not served by default.
func TestBetas(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startPairOf(t, asked...)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts := lifeCycles(t, pair, 10, func(r Resource) bool { return strings.ContainsAny(r.Version, "ab") })
	for path, key := range map[string]string{
		"/apis": "groups", "/openapi/v3": "paths", "/openapi/v2": "definitions", "/version": "minCompatibilityMinor",
	} {
		t.Run(path, func(t *testing.T) {
			if diff := cmp.Diff(names(fetch(t, pair.Upstream, path)[key]), names(fetch(t, pair.Ours, path)[key])); diff != "" {
				t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
			}
		})
	}
	t.Run("/flagz", func(t *testing.T) { compareFlags(t, pair) })
	var all result
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { all = all.plus(compare(t, pair, script, intended)) })
	}
	t.Logf("%d of %d cases are equal, %d differ as intended", all.equal, all.cases, all.intended)
}

// lifeCycles returns the scripts of the life cycles of the resources that are wanted, of which there must be a number.
func lifeCycles(t *testing.T, pair *Pair, least int, wanted func(Resource) bool) []*Script {
	t.Helper()
	template, err := LoadTemplate("testdata/betas.template")
	if err != nil {
		t.Fatal(err)
	}
	resources, err := Resources(t.Context(), pair.Upstream)
	if err != nil {
		t.Fatal(err)
	}
	resources = slices.DeleteFunc(resources, func(r Resource) bool { return !wanted(r) })
	if len(resources) < least {
		t.Fatalf("only %d resources are wanted, at least %d must be", len(resources), least)
	}
	scripts, err := Generate(template, resources)
	if err != nil {
		t.Fatal(err)
	}
	return scripts
}

// ownFlags are flags whose values differ between any two servers: addresses, paths, generated values and --help.
var ownFlags = []string{
	"cert-dir", "etcd-servers", "feature-gates", "help", "secure-port", "tls-cert-file", "tls-private-key-file",
	"version", "watch-cache-sizes",
}

// compareFlags compares the flags that both servers report. Quorate has additional flags.
func compareFlags(t *testing.T, pair *Pair) {
	flags := func(server *Server) map[string]any {
		return fetch(t, server, "/flagz")["flags"].(map[string]any)
	}
	theirs, ours := flags(pair.Upstream), flags(pair.Ours)
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if !slices.Contains(ownFlags, name) && theirs[name] != ours[name] {
			t.Errorf("--%s is %v with kube-apiserver, and %v", name, theirs[name], ours[name])
		}
	}
}

// fetch returns the document at a path.
func fetch(t *testing.T, server *Server, path string) map[string]any {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Origin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if kind, ok := map[string]string{"/flagz": "Flagz", "/statusz": "Statusz"}[path]; ok {
		request.Header.Set("Accept", "application/json;v=v1beta1;g=config.k8s.io;as="+kind)
	}
	response, err := server.admin.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, response.Status, err)
	}
	var document map[string]any
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// names returns the keys of an object, or the elements of a list.
func names(part any) any {
	if object, ok := part.(map[string]any); ok {
		return slices.Sorted(maps.Keys(object))
	}
	return part
}
