package serving

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/utils/clock"
)

func ask(handler http.Handler, method, accept, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.Header.Set("Accept", accept)
	handler.ServeHTTP(w, r)
	return w
}

func TestFlagz(t *testing.T) {
	page := Flagz(map[string]string{"secure-port": "6443", "bind-address": "127.0.0.1"})
	for accept, want := range map[string]string{
		"": "bind-address: 127.0.0.1\nsecure-port: 6443\n",
		"application/json;v=v1beta1;g=config.k8s.io;as=Flagz": `{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"apiserver"},` +
			`"flags":{"bind-address":"127.0.0.1","secure-port":"6443"}}`,
	} {
		if w := ask(page, http.MethodGet, accept, ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q: %d %s", accept, w.Code, w.Body)
		}
	}
	if w := ask(
		page, http.MethodGet, "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", "",
	); w.Code != http.StatusNotAcceptable {
		t.Errorf("another page's kind: %d", w.Code)
	}
}

// TestFlagzInCBOR serves a page in CBOR only with the feature gate.
func TestFlagzInCBOR(t *testing.T) {
	page := Flagz(map[string]string{"secure-port": "6443"})
	const accept = "application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz"
	if w := ask(page, http.MethodGet, accept, ""); w.Code != http.StatusNotAcceptable {
		t.Errorf("without the gate: %d %s", w.Code, w.Body)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	w := ask(page, http.MethodGet, accept, "")
	var got map[string]any
	if err := direct.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || got["kind"] != "Flagz" ||
		!reflect.DeepEqual(got["flags"], map[string]any{"secure-port": "6443"}) {
		t.Errorf("got %d %v: %v", w.Code, got, err)
	}
}

// levels records the verbosity that is set.
type levels []uint32

func (l *levels) SetVerbosity(level uint32) { *l = append(*l, level) }

func TestVerbosityFlag(t *testing.T) {
	var set levels
	flag := VerbosityFlag(&set)
	for value, code := range map[string]int{"4": http.StatusOK, "-1": http.StatusBadRequest, "": http.StatusBadRequest} {
		if w := ask(flag, http.MethodPut, "", value); w.Code != code {
			t.Errorf("%q: %d %s", value, w.Code, w.Body)
		}
	}
	if len(set) != 1 || set[0] != 4 {
		t.Errorf("set were %v", set)
	}
}

func TestIndicators(t *testing.T) {
	health := NewHealth(0, clock.RealClock{}, logr.Discard())
	indicators := health.Indicators(clock.RealClock{}.Now(), true)
	const ping = `kubernetes_healthcheck{name="ping",type="readyz"} 1`
	health.Passes(t.Context(), "readyz")
	if w := ask(indicators, http.MethodGet, "", ""); !strings.Contains(w.Body.String(), ping) {
		t.Errorf("after a check: %s", w.Body)
	}
	if w := ask(indicators, http.MethodDelete, "", ""); w.Body.String() != "metrics reset\n" {
		t.Errorf("reset: %s", w.Body)
	}
	if w := ask(indicators, http.MethodGet, "", ""); strings.Contains(w.Body.String(), ping) {
		t.Errorf("after a reset: %s", w.Body)
	}
}
