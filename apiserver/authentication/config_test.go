package authentication

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"quorate.dev/apiserver/config"
)

func TestOptionsOf(t *testing.T) {
	authority := authorityFile(t, newTestAuthority(t, "any"))
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("t,u,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Authentication{
		ClientCAFile: authority.file, RequestHeaderCAFile: authority.file, RequestHeaderUsername: []string{"X-User"},
		TokenFile: tokens, ServiceAccountIssuers: []string{"https://here", "https://before"},
	}
	options, err := OptionsOf(c)
	if err != nil {
		t.Fatal(err)
	}
	if options.Clients == nil || options.FrontProxy == nil || len(options.Tokens) != 1 || !slices.Equal(options.Audiences, []string{"https://here"}) {
		t.Errorf("options %+v", options)
	}
	var files []string
	for _, r := range options.Reloadables() {
		files = append(files, r.Files()...)
	}
	if !slices.Equal(files, []string{authority.file, authority.file, tokens}) {
		t.Errorf("files %v", files)
	}
	for _, bad := range []config.Authentication{{ClientCAFile: "/missing"}, {RequestHeaderCAFile: "/missing"}, {TokenFile: "/missing"}} {
		if _, err := OptionsOf(bad); err == nil {
			t.Errorf("%+v accepted", bad)
		}
	}
}
