package serving

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogFiles(t *testing.T) {
	directory := t.TempDir()
	logs := filepath.Join(directory, "log")
	for name, content := range map[string]string{"log/pods/a.log": "line", "secret": "hidden"} {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	handler := LogFiles("/logs", logs)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/logs/pods/a.log":                   {http.StatusOK, "line"},
		"/logs/":                             {http.StatusOK, `<a href="pods/">`},
		"/logs/pods/":                        {http.StatusOK, `<a href="a.log">`},
		"/logs/missing":                      {http.StatusNotFound, "404 page not found"},
		"/logs/../secret":                    {http.StatusBadRequest, "invalid URL path"},
		"/logs/" + strings.Repeat("x", 1000): {http.StatusNotFound, "file not found"},
	} {
		answer := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/logs/", nil)
		r.URL.Path = path
		handler.ServeHTTP(answer, r)
		if answer.Code != want.code || !strings.Contains(answer.Body.String(), want.text) {
			t.Errorf("%.40s: got %d %q, want %d %q", path, answer.Code, answer.Body, want.code, want.text)
		}
	}
}
