package handlers_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

const initialEvents = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// watchCompressed opens a watch that accepts gzip, without the transparent decompression of Go's client.
func (s *server) watchCompressed(t *testing.T, query string) *http.Response {
	t.Helper()
	r := s.request(t, t.Context(), exchange{request: "GET " + configMaps + query})
	r.Header.Set("Accept-Encoding", "deflate, gzip")
	response, err := s.http.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// TestCompressedWatch reads the initial events of a compressed watch, and then small and large events as soon as they
// happen.
func TestCompressedWatch(t *testing.T) {
	s := newServer(t, nil)
	s.create(t, "a", "b")
	response := s.watchCompressed(t, initialEvents)
	if got := response.Header; got.Get("Content-Encoding") != "gzip" || got.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("the response has the header %v", got)
	}
	body, err := gzip.NewReader(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(body)
	read := &events{t: t, next: func() (string, error) {
		var event json.RawMessage
		err := decoder.Decode(&event)
		return string(event), err
	}}
	read.expect(`{type: ADDED, object: {metadata: {name: a}}}`, `{type: ADDED, object: {metadata: {name: b}}}`,
		`{type: BOOKMARK}`)
	s.label(t, "a", "small")
	read.expect(`{type: MODIFIED, object: {metadata: {name: a, labels: {name: small}}}}`)
	random := make([]byte, 20<<10)
	for i := range random {
		random[i] = 'a' + byte(rand.IntN(26))
	}
	s.do(t, exchange{
		request: "PATCH " + configMaps + "/b", sends: mergePatch, code: http.StatusOK,
		body: fmt.Sprintf(`{"data":{"large":%q}}`, random),
	})
	read.expect(`{type: MODIFIED, object: {metadata: {name: b}}}`)
	s.remove(t, "a")
	read.expect(`{type: DELETED, object: {metadata: {name: a}}}`)
}

// TestUncompressedWatch opens watches that are not compressed: without initial events, and without the feature gate.
func TestUncompressedWatch(t *testing.T) {
	s := newServer(t, nil)
	s.create(t, "a")
	if got := s.watchCompressed(t, "?watch=1").Header.Get("Content-Encoding"); got != "" {
		t.Errorf("a watch without initial events is encoded as %s", got)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.WatchListCompression, false)
	if got := s.watchCompressed(t, initialEvents).Header.Get("Content-Encoding"); got != "" {
		t.Errorf("without the feature gate, a watch is encoded as %s", got)
	}
}
