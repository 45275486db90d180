package handlers_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// patience is the time in which a request must be served on a busy machine. No test succeeds because it expires.
const patience = time.Minute

// server serves all built-in kinds and the custom resource gadgets.example.com over HTTP. It has no filters: every
// request is made by the user alice, and is authorized.
type server struct {
	*builtintest.Server
	handlers *handlers.Handlers
	// permissions is the authorizer that handlers call in addition to the authorization of the request.
	permissions *permissions
	http        *httptest.Server
	// prepare changes the record of each request before it is served; nil means no change.
	prepare func(*request.Record)
	// finish is called with the record of each request after it is served; nil means that nothing is called.
	finish func(*request.Record)
}

// newServer returns a server with its own etcd. configure changes the options of the handlers; nil means no change.
// Each change gets the catalog before requests are served, and may add endpoints to definitions.
func newServer(t *testing.T, configure func(*handlers.Options), change ...func(*resource.Catalog)) *server {
	t.Helper()
	s := &server{Server: builtintest.NewServer(t, builtin.Options{}, nil), permissions: &permissions{}}
	definitions := append(slices.Clone(s.Catalog.Current().Definitions()), gadgets(t))
	catalog := resource.NewCatalog(definitions...)
	for _, change := range change {
		change(catalog)
	}
	s.Catalog.Publish(catalog)
	options := handlers.Options{
		Registry: s.Registry, Authorizer: s.permissions, Clock: clock.RealClock{}, MinWatchTimeout: patience,
		DeleteWorkers: 2,
	}
	if configure != nil {
		configure(&options)
	}
	s.handlers = handlers.New(options)
	s.http = httptest.NewServer(s)
	// A client that decompresses would hide the header Content-Encoding.
	s.http.Client().Transport.(*http.Transport).DisableCompression = true
	t.Cleanup(s.http.Close)
	return s
}

// ServeHTTP prepares a request as the filters and the router do, and passes it to the handlers.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.Begin(r, time.Now(), logr.Discard())
	record.User = &user.DefaultInfo{Name: "alice"}
	record.Warnings.To(w)
	if err := record.Resolve(r.Method); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	info := &record.Info
	match, ok := s.Catalog.Current().Lookup(info.APIGroup, info.APIVersion, info.Resource)
	if !ok {
		http.Error(w, "the router has no such resource", http.StatusTeapot)
		return
	}
	if s.prepare != nil {
		s.prepare(record)
	}
	s.handlers.Serve(w, r.WithContext(record), match)
	if s.finish != nil {
		s.finish(record)
	}
}

// newRegistry returns a second registry for the server's etcd. It may delete unreadable objects.
func newRegistry(t *testing.T, s *server) *registry.Registry {
	t.Helper()
	store := storage.New(s.Etcd, "/registry")
	store.Encrypt(encryption.Malformed(&storage.Encryption{
		For: func(string) value.Transformer { return identity.NewEncryptCheckTransformer() },
	}))
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: logr.Discard()})
	builtintest.Background(t, func(ctx context.Context) { _ = caches.Run(ctx) })
	return registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: s.Catalog, Admission: &admission.Chain{}, DeleteUnreadable: true,
		Clock: clock.RealClock{}, Logger: logr.Discard(),
	})
}

// permissions is an authorizer that allows everything except the denied verbs.
type permissions struct {
	mu sync.Mutex
	// checked has the verb, the resource and the user of each call.
	checked []string
	denied  []string
}

func (p *permissions) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = append(p.checked, a.GetVerb()+" "+a.GetResource()+" for "+a.GetUser().GetName())
	if slices.Contains(p.denied, a.GetVerb()) {
		return authorizer.DecisionDeny, "denied by the test", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// take returns the recorded calls and forgets them.
func (p *permissions) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	checked := p.checked
	p.checked = nil
	return checked
}

// gadgets is the definition of the custom resource of all tests.
func gadgets(t *testing.T) *resource.Definition {
	t.Helper()
	const text = `
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {color: {type: string, enum: [red, green]}, replicas: {type: integer, format: int32}}
          status: {type: object, properties: {replicas: {type: integer, format: int32}}}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), definition); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(definition)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	converters := builtintest.Must[crd.Converters](t)(crd.NewConverters(nil, nil))
	builder := builtintest.Must[*crd.Builder](t)(crd.NewBuilder(&lazy.Set{}, converters, clock.RealClock{}))
	return builtintest.Must[*resource.Definition](t)(builder.Definition(definition))
}

// The media types and paths of most requests.
const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonPatch    = "application/json-patch+json"
	mergePatch   = "application/merge-patch+json"
	strategic    = "application/strategic-merge-patch+json"
	applyPatch   = "application/apply-patch+yaml"
	tableType    = jsonType + ";as=Table;v=v1;g=meta.k8s.io"

	configMaps = "/api/v1/namespaces/a/configmaps"
	gadgetsInA = "/apis/example.com/v1/namespaces/a/gadgets"
)

// exchange is a request and the expected response.
type exchange struct {
	name string
	// request has the method and the URL, such as "GET /api/v1/namespaces/a/configmaps/x".
	request string
	// sends is the media type of the body, accepts the header Accept. An empty string means no header.
	sends, accepts string
	body           string
	code           int
	// want has fields of the response body in YAML. The other fields of objects are not compared. The value "*" matches
	// any value that is present, null matches a field that is absent, and a text that begins with "~" matches a text that
	// contains the rest.
	want string
	// header has headers of the response. An empty value means that the header must not be there.
	header map[string]string
}

// run sends the requests one after another, each in a subtest.
func (s *server) run(t *testing.T, exchanges []exchange) {
	t.Helper()
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) { s.do(t, e) })
	}
}

// do sends a request and checks the response. It returns the decoded body of the response.
func (s *server) do(t *testing.T, e exchange) any {
	t.Helper()
	return s.check(t, e, s.receive(t, s.request(t, t.Context(), e)))
}

// check compares a response with the expected one. It returns the decoded body of the response.
func (*server) check(t *testing.T, e exchange, got received) any {
	t.Helper()
	if got.code != e.code {
		t.Fatalf("%s: got status code %d, want %d: %s", e.request, got.code, e.code, got.body)
	}
	for name, want := range e.header {
		if value := strings.Join(got.header.Values(name), ", "); value != want {
			t.Errorf("%s: got the header %s %q, want %q", e.request, name, value, want)
		}
	}
	value := decoded(t, got.body, got.header.Get("Content-Type"))
	if err := contains(value, parsed(t, e.want), ""); err != nil {
		t.Errorf("%s: %v in the response %s", e.request, err, got.body)
	}
	return value
}

// received is a complete response.
type received struct {
	code   int
	header http.Header
	body   []byte
}

// receive sends a request and returns the response.
func (s *server) receive(t *testing.T, r *http.Request) received {
	t.Helper()
	return builtintest.Must[received](t)(s.send(r))
}

// send does the same as receive, and may be called in any goroutine.
func (s *server) send(r *http.Request) (received, error) {
	response, err := s.http.Client().Do(r)
	if err != nil {
		return received{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return received{response.StatusCode, response.Header, body}, err
}

// uncompressed returns the content of a gzip stream.
func uncompressed(t *testing.T, body []byte) string {
	t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func (s *server) request(t *testing.T, ctx context.Context, e exchange) *http.Request {
	t.Helper()
	method, url, _ := strings.Cut(e.request, " ")
	ctx, cancel := context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, s.http.URL+url, strings.NewReader(e.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("User-Agent", "tester/1.0")
	if e.sends != "" {
		r.Header.Set("Content-Type", e.sends)
	}
	if e.accepts != "" {
		r.Header.Set("Accept", e.accepts)
	}
	return r
}

// parsed returns the value of a YAML text; nil if the text is empty.
func parsed(t *testing.T, text string) (value any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// decoded returns the value of a response body. A body in plain text is a string.
func decoded(t *testing.T, body []byte, mediaType string) any {
	t.Helper()
	switch mediaType {
	case jsonType, yamlType:
		return parsed(t, string(body))
	case protobufType:
		return decodedProtobuf(t, body)
	}
	return string(body)
}

func decodedProtobuf(t *testing.T, body []byte) any {
	t.Helper()
	object, _, err := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Decode(body, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, string(text))
}

// contains returns an error unless got has all fields and values of want.
func contains(got, want any, path string) error {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("got %s %v, want an object", path, got)
		}
		for name, value := range want {
			if err := contains(fields[name], value, path+"."+name); err != nil {
				return err
			}
		}
		return nil
	case []any:
		items, ok := got.([]any)
		if !ok || len(items) != len(want) {
			return fmt.Errorf("got %s %v, want %d items", path, got, len(want))
		}
		for i := range want {
			if err := contains(items[i], want[i], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case string:
		if want == "*" && got != nil {
			return nil
		}
		part, partial := strings.CutPrefix(want, "~")
		if text, ok := got.(string); ok && partial && strings.Contains(text, part) {
			return nil
		}
	case nil:
		if path == "" {
			return nil // nothing is compared
		}
	}
	if got != want {
		return fmt.Errorf("got %s %v, want %v", path, got, want)
	}
	return nil
}

// field returns a string in a decoded response body.
func field(t *testing.T, body any, path ...string) string {
	t.Helper()
	for _, name := range path {
		fields, ok := body.(map[string]any)
		if !ok {
			t.Fatalf("got %v, want an object with the field %s", body, name)
		}
		body = fields[name]
	}
	text, ok := body.(string)
	if !ok {
		t.Fatalf("got %v, want a string at %s", body, strings.Join(path, "."))
	}
	return text
}

// create creates ConfigMaps with the given names, each with a label and a value that are its name.
func (s *server) create(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.do(t, exchange{request: "POST " + configMaps, sends: yamlType, code: http.StatusCreated, body: fmt.Sprintf(
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: %q, labels: {name: %[1]q}}, data: {key: %[1]q}}", name)})
	}
}
