package handlers_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/codec"
)

const cborType = "application/cbor"

// exchangeCBOR sends a body, given as JSON, as CBOR and returns the decoded response, which must be CBOR.
func (s *server) exchangeCBOR(t *testing.T, method, path, mediaType, body string, code int) *unstructured.Unstructured {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(body), &value); err != nil {
		t.Fatal(err)
	}
	encoded, err := direct.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	response := s.sendCBOR(t, method, path, mediaType, encoded)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != code || response.Header.Get("Content-Type") != cborType || !codec.IsCBOR(got) {
		t.Fatalf("%s %s: got %d %v %q, %v", method, path, response.StatusCode, response.Header, got, err)
	}
	object := &unstructured.Unstructured{}
	if err := direct.Unmarshal(got, &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

func (s *server) sendCBOR(t *testing.T, method, path, mediaType string, body []byte) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.http.URL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", cborType)
	r.Header.Set("Content-Type", mediaType)
	response, err := s.http.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// TestCBOR writes and reads a built-in kind and a custom resource in CBOR.
func TestCBOR(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	s := newServer(t, nil)
	for path, kind := range map[string]string{
		configMaps: `"apiVersion":"v1","kind":"ConfigMap"`, gadgetsInA: `"apiVersion":"example.com/v1","kind":"Gadget"`,
	} {
		text := `{` + kind + `,"metadata":{"name":"x","labels":{"a":"b"}}}`
		made := s.exchangeCBOR(t, http.MethodPost, path, cborType, text, http.StatusCreated)
		if made.GetName() != "x" || made.GetKind() == "" || made.GetUID() == "" {
			t.Errorf("created %v", made)
		}
		applied := s.exchangeCBOR(t, http.MethodPatch, path+"/y?fieldManager=m", "application/apply-patch+cbor",
			`{`+kind+`,"metadata":{"name":"y","labels":{"c":"d"}}}`, http.StatusCreated)
		if managers := applied.GetManagedFields(); len(managers) != 1 || managers[0].Manager != "m" {
			t.Errorf("applied %v", applied)
		}
		list := s.exchangeCBOR(t, http.MethodGet, path, cborType, "null", http.StatusOK)
		if items, _, err := unstructured.NestedSlice(list.Object, "items"); err != nil || len(items) != 2 {
			t.Errorf("listed %v: %v", list, err)
		}
		s.checkCBORWatch(t, path)
		s.exchangeCBOR(t, http.MethodDelete, path+"/x", cborType, `{"apiVersion":"v1","kind":"DeleteOptions"}`, http.StatusOK)
		missing := s.exchangeCBOR(t, http.MethodGet, path+"/x", cborType, "null", http.StatusNotFound)
		if missing.GetKind() != "Status" {
			t.Errorf("got %v", missing)
		}
	}
	stored, err := s.Etcd.Get(t.Context(), "/registry/example.com/gadgets/a/y")
	if err != nil || len(stored.Kvs) != 1 || !codec.IsCBOR(stored.Kvs[0].Value) {
		t.Errorf("stored is %v: %v", stored, err)
	}
}

// checkCBORWatch reads the initial events of a watch as a client does.
func (s *server) checkCBORWatch(t *testing.T, path string) {
	t.Helper()
	response := s.sendCBOR(t, http.MethodGet, path+"?watch=1&fieldSelector=metadata.name%3Dx", cborType, nil)
	defer response.Body.Close()
	if got := response.Header.Get("Content-Type"); got != "application/cbor-seq" {
		t.Fatalf("a watch has the media type %s", got)
	}
	frame := make([]byte, 16<<10)
	n, err := cbor.NewFramer().NewFrameReader(response.Body).Read(frame)
	var event struct {
		Type   string         `json:"type"`
		Object map[string]any `json:"object"`
	}
	if err == nil {
		err = direct.Unmarshal(frame[:n], &event)
	}
	if err != nil || event.Type != "ADDED" || (&unstructured.Unstructured{Object: event.Object}).GetName() != "x" {
		t.Errorf("got the event %v: %v", event, err)
	}
}
