package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
)

func TestRegistryIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(NewRegistry(version.Info{Major: "1", Minor: "36"}), time.Now()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes ", `kubernetes_build_info{`, `minor="36"`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
}
