package router

import "testing"

func TestReadOnly(t *testing.T) {
	for path, want := range map[string]bool{
		"/version": true, "/version/": true, "/api": true, "/api/v1": true, "/apis/apps/v1": true,
		"/apis": false, "/healthz": false, "/": false, "/apiserver": false,
	} {
		if got := readOnly(path); got != want {
			t.Errorf("%s: got %v", path, got)
		}
	}
}
