package discovery_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/resource"
)

const aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// remotes is a settable source of documents of extension API servers.
type remotes struct{ set *remote.Set }

func (r *remotes) Current() *remote.Set { return r.set }

func handler(t *testing.T, definitions ...*resource.Definition) (*discovery.Handler, *resource.CatalogHolder) {
	t.Helper()
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(definitions...))
	h, err := discovery.New(discovery.Options{
		Catalogs: publisher, Remote: &remotes{}, Addresses: discovery.Addresses{
			Default: "10.0.0.1:6443", Service: "10.9.0.1:443", ServiceRange: netip.MustParsePrefix("10.9.0.0/16"),
		},
		Peers: func() *peers.Set { return nil }, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h, publisher
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// golden reads a discovery document of kube-apiserver with everything enabled.
func golden(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(goldenDirectory(t), name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

func goldenDirectory(t *testing.T) string {
	t.Helper()
	directory, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(directory)), "api", "discovery")
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func noAction(resource.Client) resource.Action {
	return func(context.Context, resource.Call) (runtime.Object, error) { return nil, nil }
}

// everything returns all definitions, including features that are off by default.
func everything(t *testing.T) []*resource.Definition {
	t.Helper()
	for _, gate := range []featuregate.Feature{
		"GenericWorkload", "TopologyAwareWorkloadScheduling", "CompositePodGroup", "EvictionRequestAPI",
	} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, true)
	}
	apis, err := builtin.Enable(map[string]string{"api/all": "true"}, enablement.Emulation{})
	if err != nil {
		t.Fatal(err)
	}
	kubelets, err := kubelet.New(nil, kubelet.Options{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return builtin.Definitions(builtin.Options{APIs: apis, ServiceAccountToken: noAction, Kubelets: kubelets})
}

var unstable = regexp.MustCompile(`^v\d+(alpha|beta)\d+$`)

// served removes resources that are off by default from a golden list.
func served(list *discoveryv2.APIGroupDiscoveryList) {
	groups := list.Items
	list.Items = nil
	for _, g := range groups {
		versions := g.Versions
		g.Versions = nil
		for _, v := range versions {
			if !unstable.MatchString(v.Version) {
				g.Versions = append(g.Versions, v)
			}
		}
		if len(g.Versions) > 0 {
			list.Items = append(list.Items, g)
		}
	}
}

func TestAggregatedEqualsUpstream(t *testing.T) {
	byDefault := builtin.Definitions(builtin.Options{ServiceAccountToken: noAction})
	for name, definitions := range map[string][]*resource.Definition{"default": byDefault, "everything": everything(t)} {
		t.Run(name, func(t *testing.T) { checkAggregated(t, definitions, name == "default") })
	}
}

func checkAggregated(t *testing.T, definitions []*resource.Definition, stable bool) {
	h, _ := handler(t, definitions...)
	var want, got discoveryv2.APIGroupDiscoveryList
	golden(t, "aggregated_v2.json", &want)
	if stable {
		served(&want)
	}
	w := get(h, "/apis", "Accept", "application/json"+aggregated)
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err, w.Body)
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("aggregated discovery (-upstream +ours):\n%s", difference)
	}
	if w.Header().Get("Content-Type") != "application/json"+aggregated || w.Header().Get("Vary") != "Accept" ||
		w.Header().Get("Cache-Control") != "public" {
		t.Errorf("headers %v", w.Header())
	}
}

func TestLegacyEqualsUpstream(t *testing.T) {
	h, _ := handler(t, everything(t)...)
	files, err := os.ReadDir(goldenDirectory(t))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, file := range files {
		name := file.Name()
		if name == "aggregated_v2.json" {
			continue
		}
		compared++
		path := "/" + strings.ReplaceAll(strings.TrimSuffix(name, ".json"), "__", "/")
		var want, got any
		golden(t, name, &want)
		if err := json.Unmarshal(get(h, path).Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		dropAddress(want)
		dropAddress(got)
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s (-upstream +ours):\n%s", path, difference)
		}
	}
	if compared < 50 {
		t.Errorf("only %d documents", compared)
	}
}

// dropAddress removes the server addresses, which only /api has.
func dropAddress(document any) {
	delete(document.(map[string]any), "serverAddressByClientCIDRs")
}

func widgets() *resource.Definition {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	return &resource.Definition{
		Source: resource.Custom, Group: kind.Group, Plural: "widgets", Singular: "widget", Kind: kind.Kind, Namespaced: true,
		StorageVersion: kind.GroupVersion(),
		Versions: []*resource.Version{{Name: kind.Version, Kind: kind, Endpoints: map[string]*resource.Endpoint{
			"": {Kind: kind, Verbs: []string{"create", "get", "patch", "watch"}},
			"scale": {
				Subresource: "scale", Kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
				Verbs: []string{"get"},
			},
			"status": {Subresource: "status", Kind: kind, Verbs: []string{"get"}},
		}}},
	}
}

func TestCustomResource(t *testing.T) {
	h, _ := handler(t, widgets())
	const want = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[` +
		`{"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":["get","patch","create","watch"],"storageVersionHash":"gIwvi5rymmg="},` +
		`{"name":"widgets/status","singularName":"","namespaced":true,"kind":"Widget","verbs":["get"]},` +
		`{"name":"widgets/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]}]}` + "\n"
	if got := get(h, "/apis/example.com/v1/").Body.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEntityTag(t *testing.T) {
	h, publisher := handler(t, widgets())
	accept := "application/json" + aggregated
	tag := get(h, "/apis", "Accept", accept).Header().Get("ETag")
	if w := get(h, "/apis", "Accept", accept, "If-None-Match", tag); w.Code != http.StatusNotModified ||
		w.Body.Len() != 0 {
		t.Errorf("unchanged: %d with %d bytes", w.Code, w.Body.Len())
	}
	if w := get(h, "/apis", "Accept", accept, "If-None-Match", `"other"`); w.Code != http.StatusOK {
		t.Errorf("another tag: %d", w.Code)
	}
	publisher.Publish(resource.NewCatalog())
	if w := get(h, "/apis", "Accept", accept, "If-None-Match", tag); w.Code != http.StatusOK ||
		strings.Contains(w.Body.String(), "widgets") {
		t.Errorf("after the catalog changed: %d %s", w.Code, w.Body)
	}
}

// TestIndentation compares with what kube-apiserver does: documents are indented if the client asks for it, or is one
// that people use.
func TestIndentation(t *testing.T) {
	h, _ := handler(t, everything(t)...)
	for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1"} {
		for _, accept := range []string{"application/json", "application/json" + aggregated} {
			if accept != "application/json" && path != "/api" && path != "/apis" {
				continue
			}
			for _, test := range []struct {
				query, agent string
				want         bool
			}{
				{"", "kubectl/v1.36.0", false}, {"?pretty=true", "kubectl/v1.36.0", true}, {"?pretty=1", "", true},
				{"", "curl/8.0", true}, {"", "Wget/1.21", true}, {"", "Mozilla/5.0 (X11)", true},
				{"?pretty=false", "curl/8.0", false},
			} {
				w := get(h, path+test.query, "Accept", accept, "User-Agent", test.agent)
				if got := strings.Contains(w.Body.String(), "{\n  \"kind\": "); w.Code != http.StatusOK || got != test.want {
					t.Errorf("%s%s of %q as %s: code %d, indented %v, want %v", path, test.query, test.agent, accept, w.Code,
						got, test.want)
				}
			}
		}
	}
	if w := get(h, "/apis/", "Accept", "application/json"+aggregated); w.Code != http.StatusNotAcceptable {
		t.Errorf("/apis/ has no aggregated form in kube-apiserver; code %d", w.Code)
	}
}

func TestNegotiation(t *testing.T) {
	h, _ := handler(t, widgets())
	for _, test := range []struct {
		path, accept string
		code         int
		contains     string
	}{
		{"/api", "application/json", 200, `"serverAddress":"10.0.0.1:6443"`},
		{"/api", "application/yaml", 200, "kind: APIVersions"},
		{
			"/apis", "text/html", 406, "only the following media types are accepted: application/json, application/yaml, " +
				"application/vnd.kubernetes.protobuf",
		},
		{"/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", 406, "NotAcceptable"},
		{
			"/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
			200, `"kind":"APIGroupList"`,
		},
		{"/apis/example.com", "application/json" + aggregated, 406, "NotAcceptable"},
		{"/apis/nope", "", 404, "404 page not found"},
		{"/apis/example.com/v7", "", 404, `"message":"the server could not find the requested resource"`},
		{"/api/v7", "", 404, `"reason":"NotFound"`},
	} {
		w := get(h, test.path, "Accept", test.accept)
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.contains) {
			t.Errorf("%s for %q: %d %s", test.path, test.accept, w.Code, w.Body)
		}
	}
}

func TestProtobuf(t *testing.T) {
	h, _ := handler(t, widgets())
	scheme := runtime.NewScheme()
	if err := discoveryv2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := get(h, "/apis", "Accept", "application/vnd.kubernetes.protobuf"+aggregated)
	object, _, err := protobuf.NewSerializer(scheme, scheme).Decode(w.Body.Bytes(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := object.(*discoveryv2.APIGroupDiscoveryList)
	if len(list.Items) != 1 || list.Items[0].Versions[0].Resources[0].Resource != "widgets" {
		t.Errorf("got %v", list)
	}
}

// TestCBOR enables the feature gate. Discovery documents are then served in CBOR, except the documents of versions of
// custom resources.
func TestCBOR(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	h, _ := handler(t, append(everything(t), widgets())...)
	for path, kind := range map[string]string{
		"/api": "APIVersions", "/apis": "APIGroupList", "/apis/apps": "APIGroup", "/api/v1": "APIResourceList",
		"/apis/apps/v1": "APIResourceList", "/apis/example.com": "APIGroup",
	} {
		w := get(h, path, "Accept", "application/cbor")
		var got, want map[string]any
		err := errors.Join(direct.Unmarshal(w.Body.Bytes(), &got), json.Unmarshal(get(h, path).Body.Bytes(), &want))
		if err != nil || w.Header().Get("Content-Type") != "application/cbor" || got["kind"] != kind {
			t.Errorf("%s: got %v %v: %v", path, w.Header(), got["kind"], err)
		}
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s: (-JSON +CBOR)\n%s", path, difference)
		}
	}
	w := get(h, "/apis/example.com/v1", "Accept", "application/cbor")
	if w.Code != http.StatusNotAcceptable || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("a version of custom resources: got %d %v", w.Code, w.Header())
	}
}

func TestClientsInTheServiceRangeFindTheService(t *testing.T) {
	h, _ := handler(t, widgets())
	for client, want := range map[string]string{
		"10.8.0.1": `[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]`,
		"10.9.7.1": `[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"},{"clientCIDR":"10.9.0.0/16","serverAddress":"10.9.0.1:443"}]`,
		"nonsense": `[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]`,
	} {
		if got := get(h, "/api", "X-Forwarded-For", client).Body.String(); !strings.Contains(got, want) {
			t.Errorf("%s: %s", client, got)
		}
	}
}

// TestCompression requests a large document in the encodings that clients accept.
func TestCompression(t *testing.T) {
	definitions := everything(t)
	for i := range 600 { // exceeds the size from which documents are compressed
		one := *definitions[0]
		one.Group, one.Plural = fmt.Sprintf("g%d.example.com", i), fmt.Sprintf("things%d", i)
		definitions = append(definitions, &one)
	}
	h, _ := handler(t, definitions...)
	for accepted, want := range map[string]string{"gzip": "gzip", "br, gzip": "gzip", "gzip;q=0": "", "": ""} {
		w := get(h, "/apis", "Accept", "application/json"+aggregated, "Accept-Encoding", accepted)
		if got := w.Header().Get("Content-Encoding"); got != want || w.Code != http.StatusOK {
			t.Errorf("%q: %d, encoding %q of %d bytes", accepted, w.Code, got, w.Body.Len())
		}
		if want == "gzip" {
			content := must[*gzip.Reader](t)(gzip.NewReader(w.Body))
			if plain := must[[]byte](t)(io.ReadAll(content)); string(plain) != get(
				h, "/apis", "Accept", "application/json"+aggregated,
			).Body.String() {
				t.Error("the compressed document differs from the plain one")
			}
		}
	}
}

// TestAggregatedJSON: the JSON put together from groups equals what the serializer makes of the whole.
func TestAggregatedJSON(t *testing.T) {
	h, _ := handler(t, append(everything(t), widgets())...)
	for _, path := range []string{"/api", "/apis"} {
		joined := get(h, path, "Accept", "application/json"+aggregated).Body.String()
		list := &discoveryv2.APIGroupDiscoveryList{}
		if err := json.Unmarshal([]byte(joined), list); err != nil {
			t.Fatal(err)
		}
		whole, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if joined != string(whole)+"\n" {
			t.Errorf("%s: got\n%s\nwant\n%s", path, joined, whole)
		}
	}
}

// TestOtherGroupsAreNotEncodedAgain: after a change of one group, the JSON of the others is taken from before.
func TestOtherGroupsAreNotEncodedAgain(t *testing.T) {
	definitions := []*resource.Definition{widgets()}
	for i := range 500 {
		one := *definitions[0]
		one.Group = fmt.Sprintf("g%d.example.com", i)
		definitions = append(definitions, &one)
	}
	h, publisher := handler(t, definitions...)
	tags := map[string]bool{}
	read := func() { tags[get(h, "/apis", "Accept", "application/json"+aggregated).Header().Get("ETag")] = true }
	change := func() {
		changed := *definitions[0]
		definitions[0] = &changed
		changed.ShortNames = append(changed.ShortNames, "w")
		publisher.Publish(publisher.Current().With(definitions...))
		read()
	}
	read()
	if allocations := testing.AllocsPerRun(5, change); allocations > float64(10*len(definitions)) {
		t.Errorf("%.0f allocations", allocations)
	}
	if len(tags) != 7 {
		t.Errorf("%d entity tags of 7 states", len(tags))
	}
}
