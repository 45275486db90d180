package crd_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceresolver"
)

func newConverters(t testing.TB) crd.Converters {
	t.Helper()
	converters, err := crd.NewConverters(nil, serviceresolver.Clients{MaxResponse: 64 << 20}.Wrap)
	if err != nil {
		t.Fatal(err)
	}
	return converters
}

// converter is a conversion webhook. It refuses calls with an object called "bad".
type converter struct {
	*httptest.Server
	hold chan struct{} // calls wait until it is closed; nil: they do not wait
	held chan struct{} // receives when a call begins to wait

	mu    sync.Mutex
	calls []string // the desired version and the names of the objects
}

func startConverter(t testing.TB) *converter {
	c := &converter{held: make(chan struct{}, 1)}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// converts makes a definition use the webhook.
func (c *converter) converts(d *apiextensionsv1.CustomResourceDefinition) {
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &c.URL, CABundle: c.bundle()},
			ConversionReviewVersions: []string{"v1"},
		},
	}
}

func (c *converter) bundle() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
}

func (c *converter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if c.hold != nil {
		select {
		case c.held <- struct{}{}:
		default:
		}
		select {
		case <-c.hold:
		case <-r.Context().Done():
			return
		}
	}
	response := &apiextensionsv1.ConversionResponse{
		UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess},
	}
	call := review.Request.DesiredAPIVersion
	for _, raw := range review.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		call += " " + object.GetName()
		if object.GetName() == "bad" {
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "bad is bad"}
		}
		object.SetAPIVersion(review.Request.DesiredAPIVersion)
		object.SetLabels(map[string]string{"in": review.Request.DesiredAPIVersion[len("example.com/"):]})
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	c.mu.Lock()
	c.calls = append(c.calls, call)
	c.mu.Unlock()
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// take returns the calls since the last time.
func (c *converter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// defineConverted returns version v1beta1 of a resource that is stored as v1 and converted by the webhook.
func defineConverted(t testing.TB, c *converter) *resource.Version {
	t.Helper()
	definition := sample(t)
	c.converts(definition)
	builder, err := crd.NewBuilder(&lazy.Set{}, newConverters(t), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return made.Version("v1beta1")
}

func storedWidget(version, name string) []byte {
	return fmt.Appendf(nil,
		`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":%q},"spec":{"color":"green"}}`, version, name)
}

func names(objects []runtime.Object) string {
	var all []string
	for _, object := range objects {
		all = append(all, object.(*unstructured.Unstructured).GetName())
	}
	return strings.Join(all, " ")
}

// TestLoadAll sends the objects of one stored version in one call, and those in the served version not at all.
func TestLoadAll(t *testing.T) {
	c := startConverter(t)
	v := defineConverted(t, c)
	objects, err := v.Codec.LoadAll(t.Context(), [][]byte{
		storedWidget("v1", "a"), storedWidget("v1beta1", "b"), storedWidget("v1", "c"),
	})
	if err != nil || names(objects) != "a b c" {
		t.Fatalf("%s, %v", names(objects), err)
	}
	if got := fmt.Sprint(c.take()); got != "[example.com/v1beta1 a c]" {
		t.Errorf("calls %s", got)
	}
	for i, want := range []string{"v1beta1", "", "v1beta1"} {
		object := objects[i].(*unstructured.Unstructured)
		if object.GetAPIVersion() != "example.com/v1beta1" || object.GetLabels()["in"] != want {
			t.Errorf("object %d: %v", i, object.Object)
		}
	}
}

// TestConversionMetrics checks upstream's metrics of the calls.
func TestConversionMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	builtin.MeasureUpstream(registry)
	v := defineConverted(t, startConverter(t))
	if _, err := v.Codec.Load(t.Context(), storedWidget("v1", "a")); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, family := range families {
		if strings.Contains(family.GetName(), "conversion") {
			found = append(found, family.GetName())
		}
	}
	const want = "[apiserver_conversion_webhook_duration_seconds apiserver_conversion_webhook_request_total " +
		"apiserver_crd_conversion_webhook_duration_seconds]"
	if fmt.Sprint(found) != want {
		t.Errorf("got %s", found)
	}
}

// TestLoadAllFindsTheBadObject returns the objects before the one that the webhook refuses, with kube-apiserver's text.
func TestLoadAllFindsTheBadObject(t *testing.T) {
	c := startConverter(t)
	v := defineConverted(t, c)
	var stored [][]byte
	for i := range 64 {
		name := fmt.Sprint("w", i)
		if i == 37 {
			name = "bad"
		}
		stored = append(stored, storedWidget("v1", name))
	}
	objects, err := v.Codec.LoadAll(t.Context(), stored)
	var failure *resource.ConversionError
	if len(objects) != 37 || !errors.As(err, &failure) ||
		err.Error() != "conversion webhook for example.com/v1, Kind=Widget failed: bad is bad" {
		t.Errorf("%d objects, %v", len(objects), err)
	}
	if calls := len(c.take()); calls > 13 { // two for each halving
		t.Errorf("%d calls", calls)
	}
}

func TestStoreConverts(t *testing.T) {
	c := startConverter(t)
	v := defineConverted(t, c)
	object := newWidget("a")
	object.SetAPIVersion("example.com/v1beta1")
	stored, err := v.Codec.Store(t.Context(), object)
	if err != nil || !strings.HasPrefix(string(stored), `{"apiVersion":"example.com/v1",`) {
		t.Errorf("%s, %v", stored, err)
	}
	if object.GetAPIVersion() != "example.com/v1beta1" {
		t.Error("Store changed its argument")
	}
	object.SetName("bad")
	if _, err := v.Codec.Store(t.Context(), object); err == nil {
		t.Error("stored although the webhook failed")
	}
}

// TestConversionEndsWithTheContext leaves a webhook that does not answer.
func TestConversionEndsWithTheContext(t *testing.T) {
	c := startConverter(t)
	c.hold = make(chan struct{})
	v := defineConverted(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := v.Codec.Load(ctx, storedWidget("v1", "a"))
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(c.hold)
}

// TestLongConversionResponse limits what is read of an answer.
func TestLongConversionResponse(t *testing.T) {
	huge := &converter{}
	huge.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		spaces := []byte(strings.Repeat(" ", 1<<20))
		for range 80 {
			if _, err := w.Write(spaces); err != nil {
				return
			}
		}
	}))
	t.Cleanup(huge.Close)
	v := defineConverted(t, huge)
	_, err := v.Codec.Load(t.Context(), storedWidget("v1", "a"))
	if err == nil || !strings.Contains(err.Error(), "the response exceeds the limit of 67108864 bytes") {
		t.Error(err)
	}
}

func FuzzRemote(f *testing.F) {
	v := defineConverted(f, startConverter(f))
	for _, seed := range []string{`{"apiVersion":"example.com/v1"}`,
		`{"apiVersion":"example.com/v1beta1","kind":"Widget"}`, `{"kind":"Widget","apiVersion":"example.com/v1beta1"}`,
		`{"apiVersion":"`, `{`, `null`, `{"apiVersion":7}`,
		`{"ApiVersIon":"example.com/v1beta1"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		var object map[string]any
		plain := json.Unmarshal(stored, &object) == nil && !strings.Contains(string(stored), `\`) &&
			strings.Count(strings.ToLower(string(stored)), `"apiversion"`) == 1
		version, _ := object["apiVersion"].(string)
		if remote := v.Codec.Remote(stored); plain && remote == (version == "example.com/v1beta1") {
			t.Errorf("%q: remote: %v", stored, remote)
		}
	})
}

// TestConversionWebhook serves a resource in both versions, follows changes of the conversion, and deletes the objects
// of a definition although its webhook fails.
func TestConversionWebhook(t *testing.T) {
	s, c := startServer(t), startConverter(t)
	definition := sample(t)
	c.converts(definition)
	s.create(t, definition)
	s.establish(t)
	key := resource.Key{GroupResource: widgets, Namespace: "default"}
	if _, err := s.Create(t.Context(), key, newWidget("first"), resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	label := func() (string, error) {
		match, ok := s.publisher.Current().Lookup("example.com", "v1beta1", "widgets")
		if !ok {
			t.Fatal("not served")
		}
		object, err := match.Version.Codec.Load(t.Context(), storedWidget("v1", "first"))
		if err != nil {
			return "", err
		}
		return object.(*unstructured.Unstructured).GetLabels()["in"], nil
	}
	if got, err := label(); got != "v1beta1" {
		t.Errorf("label %q, %v", got, err)
	}
	s.setConversion(t, definition.Name, &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter})
	eventually(t, "without a webhook", func() bool { got, err := label(); return got == "" && err == nil })
	nowhere := "https://127.0.0.1:1/convert"
	s.setConversion(t, definition.Name, &apiextensions.CustomResourceConversion{
		Strategy: apiextensions.WebhookConverter, ConversionReviewVersions: []string{"v1"},
		WebhookClientConfig: &apiextensions.WebhookClientConfig{URL: &nowhere},
	})
	eventually(t, "with a webhook that fails", func() bool { _, err := label(); return err != nil })
	err := s.Delete(t.Context(), resource.Key{GroupResource: crd.Resource, Name: definition.Name}, &metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted", func() bool {
		return s.condition(t, definition.Name, apiextensions.Established) == string(metav1.StatusReasonNotFound)
	})
}

func (s *server) setConversion(t *testing.T, name string, conversion *apiextensions.CustomResourceConversion) {
	t.Helper()
	key := resource.Key{GroupResource: crd.Resource, Name: name}
	_, err := s.Update(t.Context(), key, func(object runtime.Object) error {
		object.(*apiextensions.CustomResourceDefinition).Spec.Conversion = conversion
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
