package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

func TestExplore(t *testing.T) {
	rawCalls = true
	directory := t.TempDir()
	users := filepath.Join(directory, "tokens.csv")
	_ = os.WriteFile(users, []byte(tokens), 0o600)
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	pair := &Pair{}
	options := upstream.Options{PKI: pki, Accounts: true, Arguments: []string{"--token-auth-file=" + users}}
	start := upstream.StartKubernetes
	if os.Getenv("OURS") != "" {
		start = upstream.StartQuorate
	}
	s, err := pair.start(t.Context(), filepath.Join(directory, "x"), options, start)
	defer func() { _ = pair.Stop() }()
	if err != nil {
		t.Fatal(err)
	}
	s.Webhooks = StartWebhooks()
	raw, _ := os.ReadFile("/tmp/explore/x.script")
	script, err := ParseScript("explore", string(raw))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	answers, err := Run(t.Context(), s, script)
	if err != nil {
		t.Error(err)
	}
	for i, a := range answers {
		fmt.Printf("=== %s (%v)\n%d %v %v\n%s\n", script.Cases[i].Name, a.At.Sub(began).Round(time.Millisecond), a.Code, a.Header["Retry-After"], a.Failures, a.Body)
		for _, e := range a.Events {
			fmt.Printf("   %s\n", e)
		}
	}
}
