package compatibility

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/test/upstream"
)

// skewVariable is the environment variable that selects tests with programs of former Kubernetes minor versions. Each
// of these programs has to be built once.
const skewVariable = "QUORATE_SKEW"

// TestVersionSkew runs kube-apiserver of each of the two former minor versions and Quorate on one etcd, as they run
// while a control plane is upgraded. kube-apiserver has written an object of every resource before Quorate starts.
// Quorate emulates the former version in one run, and serves its own version in another. In a third run, both have the
// alpha features of their versions, which include storing custom resources as CBOR.
func TestVersionSkew(t *testing.T) {
	upstream.NeedsProcesses(t)
	if os.Getenv(skewVariable) == "" {
		t.Skip("builds two former minor versions; set " + skewVariable + "=full (make skew)")
	}
	for _, release := range upstream.FormerMinors() {
		minor := strings.Join(strings.Split(strings.TrimPrefix(release, "v"), ".")[:2], ".")
		for mode, flags := range map[string]skewFlags{
			"emulated": {quorate: []string{"--emulated-version=" + minor}},
			"default":  {},
			"alpha":    {both: []string{"--feature-gates=AllAlpha=true,AllBeta=true"}},
		} {
			t.Run(minor+"/"+mode, func(t *testing.T) {
				s := startSkew(t, release, flags)
				s.exchange(t)
				mustEqual(t, "resources whose stored version "+release+" does not know", newer(minor, mode), s.newer)
			})
		}
	}
}

// newer returns the shared resources that Quorate stores in a version that a former minor version does not know, which
// therefore cannot read them. Upstream promises readable objects to the minor version before only. kube-apiserver 1.37
// stores DeviceTaintRules as v1beta2 also with --emulated-version=1.35.
func newer(minor, mode string) []string {
	const taints = "resource.k8s.io/v1alpha3/devicetaintrules as resource.k8s.io/v1beta2"
	switch {
	case minor != "1.35":
		return nil
	case mode == "emulated":
		return []string{taints}
	}
	return []string{
		"admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies as admissionregistration.k8s.io/v1",
		"admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicybindings as admissionregistration.k8s.io/v1",
		"admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies as admissionregistration.k8s.io/v1",
		"admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicybindings as admissionregistration.k8s.io/v1",
		taints,
	}
}

// skew is a kube-apiserver of a former release and Quorate on one etcd.
type skew struct {
	former, quorate *server
	etcd            *clientv3.Client
	entries         map[schema.GroupVersionResource]upstream.UpstreamResource // of the former release
	// shared are the resources that both servers serve.
	shared []schema.GroupVersionResource
	kinds  map[schema.GroupVersionResource]served // by the former release
	// newer are the shared resources that Quorate stores in a version that the former release does not know.
	newer []string
	// emulates is set if Quorate emulates the former release.
	emulates bool
}

// skewFlags are flags of the servers in addition to those that all runs have.
type skewFlags struct{ both, quorate []string }

// startSkew starts kube-apiserver of a release on an empty etcd, writes an object of every resource through it, and
// then starts Quorate on the same etcd, with another host name, so that both have an identity.
func startSkew(t *testing.T, release string, flags skewFlags) *skew {
	t.Helper()
	_, options := upstream.NewOptions(t)
	s := &skew{emulates: len(flags.quorate) > 0}
	var err error
	if s.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{options.Etcd}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.etcd.Close() })
	if s.entries, err = upstream.UpstreamResourcesOf(t.Context(), release, namespace); err != nil {
		t.Fatal(err)
	}
	arguments := append(flags.both, "--runtime-config=api/all=true",
		"--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition")
	options.Arguments, options.Version = arguments, release
	former, err := upstream.StartKubernetes(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	former.StopAfter(t)
	s.former = newServer(t, "kube-apiserver "+release, former.Admin)
	s.writeAll(t)
	options.Arguments = slices.Concat(arguments, flags.quorate)
	quorate, err := onHost(t, "quorate", upstream.StartQuorate)(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	quorate.StopAfter(t)
	s.quorate = newServer(t, "quorate", quorate.Admin)
	return s
}

// writeAll creates upstream's object of every resource that the former release serves.
func (s *skew) writeAll(t *testing.T) {
	t.Helper()
	s.former.create(t, "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	s.kinds = s.former.storedKinds(t)
	written := map[string]bool{} // by key; an object may be in the table in several versions
	for _, name := range sorted(s.kinds) {
		e, ok := s.entries[name]
		if !ok {
			t.Errorf("upstream's table has no %v", name)
			continue
		}
		if !written[e.Path] {
			written[e.Path] = true
			s.former.create(t, s.collection(name), s.stub(t, name))
		}
	}
	if len(written) < 70 {
		t.Errorf("only %d objects were written", len(written))
	}
}

func sorted[V any](resources map[schema.GroupVersionResource]V) []schema.GroupVersionResource {
	return slices.SortedFunc(maps.Keys(resources), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	})
}

// stub returns upstream's object of a resource.
func (s *skew) stub(t *testing.T, name schema.GroupVersionResource) string {
	t.Helper()
	var body object
	if err := json.Unmarshal([]byte(s.entries[name].Stub), &body); err != nil {
		t.Fatal(err)
	}
	body["apiVersion"], body["kind"] = name.GroupVersion().String(), s.kinds[name].Kind
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func (s *skew) collection(name schema.GroupVersionResource) string {
	collection := "/apis/" + name.GroupVersion().String() + "/"
	if name.Group == "" {
		collection = "/api/v1/"
	}
	if s.kinds[name].Namespaced {
		collection += "namespaces/" + namespace + "/"
	}
	return collection + name.Resource
}

// exchange compares the objects that the former release has stored, as both servers return them. Then exchange writes
// every shared resource through each server, and watches the resource on both servers.
func (s *skew) exchange(t *testing.T) {
	for _, name := range sorted(s.kinds) {
		if s.quorate.serves(t, name) {
			s.shared = append(s.shared, name)
		} else {
			t.Logf("%v is served by %s only", name, s.former.name)
		}
	}
	if len(s.shared) < 70 {
		t.Errorf("both serve only %d resources", len(s.shared))
	}
	t.Run("read", func(t *testing.T) { s.readAll(t) })
	t.Run("write", func(t *testing.T) { s.writeShared(t) })
}

// serves reports whether a server has a resource in discovery.
func (s *server) serves(t *testing.T, name schema.GroupVersionResource) bool {
	t.Helper()
	address := "/apis/" + name.GroupVersion().String()
	if name.Group == "" {
		address = "/api/v1"
	}
	status, answer, err := s.call(t.Context(), http.MethodGet, address, "", nil)
	if status == http.StatusNotFound {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	resources, _ := answer["resources"].([]any)
	return slices.ContainsFunc(resources, func(resource any) bool {
		return resource.(map[string]any)["name"] == name.Resource
	})
}

// readAll compares the objects and lists of both servers.
func (s *skew) readAll(t *testing.T) {
	for _, name := range s.shared {
		t.Run(title(name), func(t *testing.T) {
			collection := s.collection(name)
			s.mustAgree(t, name, collection+"/"+path.Base(s.entries[name].Path))
			s.mustAgree(t, name, collection)
		})
	}
}

func title(name schema.GroupVersionResource) string {
	return name.Group + "/" + name.Version + "/" + name.Resource
}
