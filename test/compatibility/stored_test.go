package compatibility

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/test/upstream"
)

// wholeVariable is the environment variable that selects every resource and the samples of every release. Without it,
// the test covers the core group, apps and one resource of every other group, and the oldest release.
const wholeVariable = "COMPATIBILITY_WHOLE"

// releases are the releases of which the module k8s.io/api contains samples: objects with every field set, in protobuf.
var releases = []string{"v1.34.0", "v1.35.0", "v1.36.0", "HEAD"}

// prefixes are the key prefixes of the two servers, kube-apiserver's first.
var prefixes = []string{"/kubernetes", "/quorate"}

// sampleNamespace is the namespace of samples. Each sample has the name "nameValue".
const sampleNamespace = "namespaceValue"

// TestFormerReleases starts each server on the same state of a former release, each with its own prefix.
func TestFormerReleases(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	fill := func(client *clientv3.Client) {
		for _, prefix := range prefixes {
			storeNamespaces(t, client, prefix)
			storePolicy(t, client, prefix)
		}
	}
	var arguments [2][]string
	for i, prefix := range prefixes {
		arguments[i] = append(slices.Clone(everything), "--etcd-prefix="+prefix)
	}
	both := startServersOn(t, fill, arguments[0], arguments[1])
	t.Run("policy", func(t *testing.T) { both.havePolicyUpgraded(t) })
	t.Run("objects", func(t *testing.T) { both.useStoredObjects(t) })
}

// useStoredObjects stores objects of every resource in etcd as former releases may have stored them: upstream's stubs
// without defaults, and upstream's samples. The responses of both servers to equal reads and writes, and the values
// that are stored afterwards, must be equal.
func (both *servers) useStoredObjects(t *testing.T) {
	entries, err := upstream.UpstreamResources(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	kinds, tried := both.quorate.storedKinds(t), 0
	names, releases := triedNames(kinds), releases
	if os.Getenv(wholeVariable) == "" {
		names, releases = oneOfEach(names), releases[:1]
	}
	for _, name := range names {
		collection := path.Dir(strings.TrimPrefix(entries[name].Path, "/registry/"))
		s := stored{both: both, resource: name, kind: kinds[name], collection: collection}
		t.Run(name.Group+"/"+name.Version+"/"+name.Resource, func(t *testing.T) {
			s.compare(t, "stub", s.stub(t, entries[name]))
			for _, release := range releases {
				if data, ok := s.sample(t, release); ok {
					tried++
					s.compare(t, release, data)
				}
			}
		})
	}
	if tried < len(names)/2*len(releases) {
		t.Errorf("only %d samples of %d resources were tried", tried, len(names))
	}
}

// alive are the groups whose objects change what is served, or are written by controllers of the servers.
var alive = []string{"apiextensions.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io"}

// triedNames returns the tested resources in order.
func triedNames(kinds map[schema.GroupVersionResource]served) []schema.GroupVersionResource {
	var names []schema.GroupVersionResource
	for name := range kinds {
		if !slices.Contains(alive, name.Group) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return names
}

// oneOfEach selects the core group, apps, and the first resource of every other group.
func oneOfEach(names []schema.GroupVersionResource) []schema.GroupVersionResource {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name schema.GroupVersionResource) bool {
		again := seen[name.Group]
		seen[name.Group] = true
		return again && name.Group != "" && name.Group != "apps"
	})
}

// storeNamespaces writes the namespaces of the objects to etcd, because the API would reject one of their names.
func storeNamespaces(t *testing.T, client *clientv3.Client, prefix string) {
	for _, name := range []string{namespace, sampleNamespace} {
		object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"uid":%q}}`, name, name)
		if _, err := client.Put(t.Context(), prefix+"/namespaces/"+name, object); err != nil {
			t.Fatal(err)
		}
	}
}

// stored is a resource whose objects are written to etcd.
type stored struct {
	both       *servers
	resource   schema.GroupVersionResource
	kind       served
	collection string // directory of the keys, without the prefix of a server
}

// stub returns upstream's small object in JSON, with the values that a server would have allocated.
func (s stored) stub(t *testing.T, entry upstream.UpstreamResource) []byte {
	t.Helper()
	var object object
	if err := json.Unmarshal([]byte(entry.Stub), &object); err != nil {
		t.Fatal(err)
	}
	object["apiVersion"], object["kind"] = s.resource.GroupVersion().String(), s.kind.Kind
	metadata(object)["uid"] = "00000000-0000-0000-0000-000000000001"
	metadata(object)["creationTimestamp"] = "2020-01-02T03:04:05Z"
	if s.kind.Namespaced {
		metadata(object)["namespace"] = namespace
	}
	if s.kind.Kind == "Service" {
		// Otherwise a server would allocate any port.
		object["spec"].(map[string]any)["allocateLoadBalancerNodePorts"] = false
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sample returns upstream's object with every field of a release, if the kind existed in that release.
func (s stored) sample(t *testing.T, release string) ([]byte, bool) {
	t.Helper()
	directory, err := upstream.ModuleDirectory(t.Context(), "k8s.io/api")
	if err != nil {
		t.Fatal(err)
	}
	group := s.resource.Group
	if group == "" {
		group = "core"
	}
	file := group + "." + s.resource.Version + "." + s.kind.Kind + ".pb"
	data, err := os.ReadFile(filepath.Join(directory, "testdata", release, file))
	return data, err == nil
}

// compare stores an object for both servers and compares their responses.
func (s stored) compare(t *testing.T, what string, data []byte) {
	t.Helper()
	name, within := "nameValue", sampleNamespace
	if data[0] == '{' {
		var stub object
		if err := json.Unmarshal(data, &stub); err != nil {
			t.Fatal(err)
		}
		name, within = metadata(stub)["name"].(string), namespace
	}
	key, api := "/"+s.collection+"/"+name, "/apis/"+s.resource.GroupVersion().String()
	if s.resource.Group == "" {
		api = "/api/v1"
	}
	if s.kind.Namespaced {
		key = "/" + path.Dir(s.collection) + "/" + within + "/" + name
		api += "/namespaces/" + within
	}
	for _, prefix := range prefixes {
		if _, err := s.both.etcd.Put(t.Context(), prefix+key, string(data)); err != nil {
			t.Fatal(err)
		}
	}
	s.exchange(t, what, api+"/"+s.resource.Resource+"/"+name, key)
	for _, prefix := range prefixes {
		if _, err := s.both.etcd.Delete(t.Context(), prefix+key); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	mergePatch = "application/merge-patch+json"
	label      = `{"metadata":{"labels":{"patched":"yes"}}}`
)

// exchange sends the same requests to both servers.
func (s stored) exchange(t *testing.T, what, path, key string) {
	t.Helper()
	send := func(method, path, contentType string, bodies ...string) (answers [2][]byte) {
		t.Helper()
		return s.send(t, what, key, method, path, contentType, append(bodies, bodies...))
	}
	before := send(http.MethodGet, path, "")
	send(http.MethodGet, path+"/status", "")
	send(http.MethodPatch, path+"?dryRun=All", mergePatch, label)
	send(http.MethodPut, path+"?dryRun=All", "application/json", string(before[0]), string(before[1]))
	send(http.MethodPatch, path+"/status", mergePatch, label)
	send(http.MethodPatch, path, mergePatch, label)
	send(http.MethodPatch, path, "application/strategic-merge-patch+json", `{"metadata":{"labels":null}}`)
	send(http.MethodDelete, path+"?dryRun=All", "")
	send(http.MethodDelete, path+"?propagationPolicy=Background", "")
	send(http.MethodPatch, path, mergePatch, `{"metadata":{"finalizers":null}}`)
}

// send compares the responses to a request, and the values that are stored afterwards. Each server has its own request
// body.
func (s stored) send(t *testing.T, what, key, method, path, contentType string, bodies []string) (answers [2][]byte) {
	t.Helper()
	what += ": " + method + " " + path
	var shown, values [2]string
	var decoded [2]object
	var statuses [2]int
	for i, server := range []*server{s.both.kubernetes, s.both.quorate} {
		var body []byte
		if len(bodies) > i {
			body = []byte(bodies[i])
		}
		status, answer, err := server.call(t.Context(), method, path, contentType, body)
		if err != nil {
			t.Fatal(err)
		}
		if answers[i], err = json.MarshalIndent(answer, "", "  "); err != nil {
			t.Fatal(err)
		}
		statuses[i], decoded[i] = status, answer
		response, err := s.both.etcd.Get(t.Context(), prefixes[i]+key)
		if err != nil {
			t.Fatal(err)
		}
		if len(response.Kvs) > 0 {
			values[i] = string(withoutTimes(response.Kvs[0].Value, answer))
		}
	}
	omitCauses(t, what, decoded[0], decoded[1])
	for i := range shown {
		shown[i] = show(t, statuses[i], decoded[i])
	}
	if shown[0] != shown[1] {
		t.Errorf("%s, kube-apiserver (-) and quorate (+):\n%s", what, cmp.Diff(lines(shown[0]), lines(shown[1])))
	}
	if values[0] != values[1] {
		t.Errorf("%s: stored by kube-apiserver, then by quorate:\n%q\n%q", what, values[0], values[1])
	}
	return answers
}

func lines(text string) []string { return strings.Split(text, "\n") }

// chosen are fields whose values servers choose. Both servers use the same etcd, so that revisions differ. selfLink is
// never stored, but is part of the samples, and a dry run returns it.
var chosen = regexp.MustCompile(`(?m)^ *"(resourceVersion|time|deletionTimestamp|selfLink)": "[^"]*",?\n`)

// omitted is the end of the message of a response from which Quorate has omitted validation errors.
var omitted = regexp.MustCompile(`\((\d+) shown of (\d+) errors\)$`)

// omitCauses removes those causes from kube-apiserver's response that Quorate's response omits, if the latter states
// the number of validation errors and contains only errors that kube-apiserver also reports.
func omitCauses(t *testing.T, what string, kubernetes, quorate object) {
	t.Helper()
	message, _ := quorate["message"].(string)
	numbers := omitted.FindStringSubmatch(message)
	if numbers == nil {
		return
	}
	all, shown := causes(kubernetes), causes(quorate)
	if numbers[1] != strconv.Itoa(len(shown)) || numbers[2] != strconv.Itoa(len(all)) {
		t.Errorf("%s: %d of %d causes are shown, and the message ends with %q", what, len(shown), len(all), numbers[0])
	}
	remaining := map[string]int{}
	for _, cause := range all {
		remaining[fmt.Sprint(cause)]++
	}
	for _, cause := range shown {
		if remaining[fmt.Sprint(cause)]--; remaining[fmt.Sprint(cause)] < 0 {
			t.Errorf("%s: kube-apiserver does not report %v", what, cause)
		}
	}
	kubernetes["details"].(map[string]any)["causes"] = slices.Clone(shown)
}

// causes returns the causes of a Status.
func causes(answer object) []any {
	details, _ := answer["details"].(map[string]any)
	causes, _ := details["causes"].([]any)
	return causes
}

// show returns the text of a response for the comparison. Validation returns errors of map values in random order.
func show(t *testing.T, status int, answer object) string {
	t.Helper()
	if causes := causes(answer); causes != nil {
		delete(answer, "message") // names the causes in their order
		slices.SortFunc(causes, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	encoded, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d\n%s", status, chosen.ReplaceAll(encoded, nil))
}

// withoutTimes replaces the times that a server has set, in managed fields and of the deletion, by constants of the
// same length.
func withoutTimes(stored []byte, answer object) []byte {
	m, _ := answer["metadata"].(map[string]any)
	set := []any{m["deletionTimestamp"]}
	managers, _ := m["managedFields"].([]any)
	for _, manager := range managers {
		set = append(set, manager.(map[string]any)["time"])
	}
	for _, moment := range set {
		text, _ := moment.(string)
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			continue
		}
		stored = bytes.ReplaceAll(stored, []byte(text), bytes.Repeat([]byte("t"), len(text)))
		seconds := binary.AppendUvarint(nil, uint64(parsed.Unix())) // of a protobuf Timestamp
		stored = bytes.ReplaceAll(stored, seconds, bytes.Repeat([]byte("t"), len(seconds)))
	}
	return stored
}
