package differential

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"quorate.dev/test/upstream"
)

// TestEmulation compares both servers when they emulate an older version of Kubernetes: the APIs, the features, and the
// stored objects.
func TestEmulation(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for _, version := range []string{"1.34", "1.35", "1.36"} {
		t.Run(version, func(t *testing.T) {
			pair := startPairOf(t, "--emulated-version="+version, "--runtime-config=api/beta=true")
			compareEmulation(t, pair)
			if version == "1.36" { // the first that serves /statusz by default
				compareStatus(t, pair)
			}
		})
	}
}

// compareStatus compares the versions in /statusz.
func compareStatus(t *testing.T, pair *Pair) {
	t.Helper()
	theirs, ours := fetch(t, pair.Upstream, "/statusz"), fetch(t, pair.Ours, "/statusz")
	for _, key := range []string{"binaryVersion", "emulationVersion", "apiVersion"} {
		if theirs[key] == nil || theirs[key] != ours[key] {
			t.Errorf("%s: kube-apiserver %v, ours %v", key, theirs[key], ours[key])
		}
	}
}

func compareEmulation(t *testing.T, pair *Pair) {
	for path, key := range map[string]string{
		"/apis": "groups", "/openapi/v3": "paths", "/openapi/v2": "definitions",
		"/version": "minCompatibilityMinor", "/version?": "emulationMinor", "/version?1": "minor",
	} {
		t.Run(path, func(t *testing.T) {
			if diff := cmp.Diff(names(fetch(t, pair.Upstream, path)[key]), names(fetch(t, pair.Ours, path)[key])); diff != "" {
				t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
			}
		})
	}
	t.Run("features", func(t *testing.T) {
		if diff := cmp.Diff(features(t, pair.Upstream), features(t, pair.Ours)); diff != "" {
			t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
		}
	})
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts := lifeCycles(t, pair, 1, func(r Resource) bool { return r.Version != "v1" || recent(r) })
	common, err := LoadScripts("testdata")
	if err != nil {
		t.Fatal(err)
	}
	scripts = append(scripts, slices.DeleteFunc(common, func(s *Script) bool { return s.Name != "debug" })...)
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
}

// recent reports whether a resource of version 1 was introduced recently.
func recent(r Resource) bool {
	return strings.HasPrefix(r.Group, "resource.") || strings.HasPrefix(r.Group, "admissionregistration.")
}

// features returns the metric of enabled features.
func features(t *testing.T, server *Server) []string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Origin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.admin.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(body), "\n"), func(line string) bool {
		return !strings.HasPrefix(line, "kubernetes_feature_enabled{")
	})
	slices.Sort(lines)
	return lines
}
