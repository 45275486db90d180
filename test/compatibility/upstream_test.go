package compatibility

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// release is the release of Kubernetes whose resources are served.
var release = version.MustParse("1.36")

// entry is what upstream's test of storage says about a resource.
type entry struct {
	stub, path string
	stored     schema.GroupVersionKind
	introduced string
	removed    string
}

// upstreamEntries reads the table of upstream's test of storage, which has an entry for every resource.
func upstreamEntries(t *testing.T) map[schema.GroupVersionResource]entry {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(module)), "test", "integration", "etcd", "data.go")
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[schema.GroupVersionResource]entry{}
	ast.Inspect(file, func(node ast.Node) bool {
		pair, ok := node.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		name := arguments(pair.Key, "gvr")
		fields, literal := pair.Value.(*ast.CompositeLit)
		if name == nil || !literal {
			return true
		}
		resource := schema.GroupVersionResource{Group: name[0], Version: name[1], Resource: name[2]}
		if e := newEntry(fields); !e.gone() {
			entries[resource] = e
		}
		return false
	})
	return entries
}

func newEntry(fields *ast.CompositeLit) (e entry) {
	for _, element := range fields.Elts {
		field := element.(*ast.KeyValueExpr)
		switch field.Key.(*ast.Ident).Name {
		case "Stub":
			e.stub = text(field.Value)
		case "ExpectedEtcdPath":
			e.path = text(field.Value)
		case "ExpectedGVK":
			kind := arguments(field.Value, "gvkP")
			e.stored = schema.GroupVersionKind{Group: kind[0], Version: kind[1], Kind: kind[2]}
		case "IntroducedVersion":
			e.introduced = text(field.Value)
		case "RemovedVersion":
			e.removed = text(field.Value)
		}
	}
	return e
}

// gone reports whether the release has the resource no more.
func (e entry) gone() bool { return e.removed != "" && release.AtLeast(version.MustParse(e.removed)) }

// arguments returns those of a call of a function with texts.
func arguments(expression ast.Expr, function string) []string {
	call, ok := expression.(*ast.CallExpr)
	if !ok {
		return nil
	}
	if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != function {
		return nil
	}
	var texts []string
	for _, argument := range call.Args {
		texts = append(texts, text(argument))
	}
	return texts
}

// text evaluates a concatenation of literals and variables.
func text(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if value, err := strconv.Unquote(e.Value); err == nil {
			return value
		}
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	case *ast.Ident:
		switch e.Name {
		case "namespace":
			return namespace
		case "image":
			return "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
		}
	}
	panic(fmt.Sprintf("no text: %#v", expression))
}

// everything makes both servers serve all there is. Admission that adds to objects, or that asks for an account that
// nobody makes here, is off.
var everything = []string{
	"--runtime-config=api/all=true",
	"--feature-gates=ClusterTrustBundle=true,GenericWorkload=true,PodCertificateRequest=true,StorageVersionMigrator=true",
	"--disable-admission-plugins=PodGroupProtection,ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition",
}

// TestEveryResourceIsStoredAlike creates the object that upstream has for every resource in every version, through one
// server and then through the other: it must lie where and as what upstream's table says, in the same bytes.
func TestEveryResourceIsStoredAlike(t *testing.T) {
	both := startServers(t, everything...)
	both.kubernetes.create(t, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	entries, kinds := upstreamEntries(t), both.quorate.storedKinds(t)
	for _, name := range slices.SortedFunc(maps.Keys(kinds), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	}) {
		e, ok := entries[name]
		if !ok {
			t.Errorf("upstream's table has no %v", name)
			continue
		}
		t.Run(name.Group+"/"+name.Version+"/"+name.Resource, func(t *testing.T) { both.storeEntry(t, name, kinds[name], e) })
	}
	for name := range entries {
		custom := strings.HasSuffix(name.Group, ".com") // of definitions that upstream's test makes first
		if _, ok := kinds[name]; !ok && !custom {
			t.Errorf("%v is not served", name)
		}
	}
}

// served is what discovery says about a resource.
type served struct {
	Name, Kind string
	Namespaced bool
	Verbs      []string
}

// storedKinds asks discovery which resources can be created and read.
func (s *server) storedKinds(t *testing.T) map[schema.GroupVersionResource]served {
	t.Helper()
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	s.decode(t, "/apis", &groups)
	documents := map[string]string{"v1": "/api/v1"}
	for _, group := range groups.Groups {
		for _, v := range group.Versions {
			documents[v.GroupVersion] = "/apis/" + v.GroupVersion
		}
	}
	kinds := map[schema.GroupVersionResource]served{}
	for groupVersion, path := range documents {
		var list struct{ Resources []served }
		s.decode(t, path, &list)
		gv, err := schema.ParseGroupVersion(groupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Resources {
			if slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get") && !strings.Contains(r.Name, "/") {
				kinds[gv.WithResource(r.Name)] = r
			}
		}
	}
	return kinds
}

func (s *server) decode(t *testing.T, path string, into any) {
	t.Helper()
	content, err := json.Marshal(s.get(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

// allocated are what servers choose for a service, fixed so that both choose the same.
var allocated = map[string]any{"clusterIP": "10.0.0.77", "allocateLoadBalancerNodePorts": false}

func (both *servers) storeEntry(t *testing.T, name schema.GroupVersionResource, kind served, e entry) {
	t.Helper()
	var body object
	if err := json.Unmarshal([]byte(e.stub), &body); err != nil {
		t.Fatal(err)
	}
	body["apiVersion"], body["kind"] = name.GroupVersion().String(), kind.Kind
	if kind.Kind == "Service" {
		maps.Copy(body["spec"].(map[string]any), allocated)
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	collection := "/apis/" + name.GroupVersion().String() + "/"
	if name.Group == "" {
		collection = "/api/v1/"
	}
	if kind.Namespaced {
		collection += "namespaces/" + namespace + "/"
	}
	collection += name.Resource
	var stored [2][]byte
	for i, writer := range []*server{both.kubernetes, both.quorate} {
		created := writer.create(t, collection, string(encoded))
		stored[i] = neutral(t, both.at(t, writer, e.path, created), created)
		both.remove(t, writer, collection+"/"+metadata(created)["name"].(string), e.path)
	}
	if !bytes.Equal(stored[0], stored[1]) {
		t.Errorf("stored by kube-apiserver, then by quorate:\n%q\n%q", stored[0], stored[1])
	}
	want := e.stored
	if want.Empty() {
		want = name.GroupVersion().WithKind(kind.Kind)
	}
	if !strings.Contains(string(stored[1]), want.Kind) || !strings.Contains(string(stored[1]), want.GroupVersion().String()) {
		t.Errorf("not stored as %v: %.100q", want, stored[1])
	}
}

// at reads what was stored when an object was created: controllers may have changed it since.
func (both *servers) at(t *testing.T, writer *server, path string, created object) []byte {
	t.Helper()
	revision, err := strconv.ParseInt(metadata(created)["resourceVersion"].(string), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	response, err := both.etcd.Get(t.Context(), path, clientv3.WithRev(revision))
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Kvs) != 1 {
		t.Fatalf("%s stored nothing under %s", writer.name, path)
	}
	return response.Kvs[0].Value
}

// remove deletes an object even when finalizers keep it that nobody takes away here.
func (both *servers) remove(t *testing.T, writer *server, path, key string) {
	t.Helper()
	writer.delete(t, path)
	if _, err := both.etcd.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}
