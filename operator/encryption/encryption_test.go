package encryption

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func scheme(t *testing.T, kind string, former Scheme, fresh bool, resources ...string) Scheme {
	t.Helper()
	start = start.Add(time.Hour)
	created, err := Scheme{Resources: resources, Provider: Provider{Kind: kind}}.WithKey(former, fresh, start)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

var secret = regexp.MustCompile(`secret: .*`)

// TestStages compares the configuration of each stage of several changes with golden files.
func TestStages(t *testing.T) {
	first := scheme(t, Secretbox, Scheme{}, false, "secrets")
	second := scheme(t, Secretbox, first, true, "secrets")
	covering := scheme(t, Secretbox, first, false, "configmaps", "*.apps", "secrets")
	plugin := Scheme{Resources: []string{"*.*"}, Provider: Provider{
		Kind: KMS, Name: "vault", Endpoint: "unix:///run/kms/vault.sock", Timeout: 3 * time.Second,
	}}
	for name, c := range map[string]struct{ from, to Scheme }{
		"enable":            {Scheme{}, first},
		"disable":           {first, Scheme{}},
		"rotate":            {first, second},
		"resources":         {first, covering},
		"provider":          {first, scheme(t, AESCBC, first, false, "secrets")},
		"kms-to-everything": {first, plugin},
	} {
		var text []byte
		state := State{Current: c.from, Next: &c.to}
		for _, stage := range []string{"TrustBoth", "Reissue", "DropOld"} {
			content, err := state.Configuration()
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, "# "+stage+"\n"+secret.ReplaceAllString(string(content), "secret: ...")...)
			if stored, err := Parse(state.Data()); err != nil || string(stored.Data()) != string(state.Data()) {
				t.Errorf("%s: stored as %s, read as %s: %v", name, state.Data(), stored.Data(), err)
			}
			if stage == "TrustBoth" {
				state = state.Promote()
			} else {
				state = state.Drop()
			}
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || string(text) != string(want) {
			t.Errorf("%s: %v\ngot:\n%s\nwant:\n%s", name, err, text, want)
		}
	}
}

// TestMissingKeys checks that no stage of a change lacks a key of the stage before it, except for the keys that DropOld
// removes, and that unrelated states do lack the keys.
func TestMissingKeys(t *testing.T) {
	first := scheme(t, Secretbox, Scheme{}, false, "secrets")
	second := scheme(t, AESCBC, first, true, "secrets", "*.apps")
	plugin := Scheme{Resources: []string{"secrets"}, Provider: Provider{Kind: KMS, Name: "vault"}}
	edited := first
	edited.Provider.Secret = second.Provider.Secret
	for name, change := range map[string]struct{ from, to Scheme }{
		"enable": {Scheme{}, first}, "disable": {first, Scheme{}}, "replace": {first, second}, "plugin": {first, plugin},
	} {
		stages := []State{{Current: change.from}, {Current: change.from, Next: &change.to}}
		stages = append(stages, stages[1].Promote(), stages[1].Promote().Drop(), State{Current: change.to})
		for i, state := range stages[:len(stages)-1] {
			content, err := state.Configuration()
			if err != nil {
				t.Fatal(err)
			}
			dropped := i+1 == 3
			if missing := stages[i+1].MissingKeys(content, !dropped); len(missing) > 0 {
				t.Errorf("%s, stage %d lacks %v", name, i+1, missing)
			}
		}
	}
	rewriting := State{Current: second, Previous: &first}
	content, err := rewriting.Configuration()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		state State
		all   bool
		want  []string
	}{
		"nothing":               {State{}, false, []string{second.Provider.Name}},
		"an older state":        {State{Current: first}, false, []string{second.Provider.Name}},
		"another secret":        {State{Current: second, Previous: &edited}, true, []string{first.Provider.Name}},
		"the former is gone":    {State{Current: second}, true, []string{first.Provider.Name}},
		"the former is dropped": {State{Current: second}, false, nil},
		"the state in use":      {rewriting, true, nil},
	} {
		if got := test.state.MissingKeys(content, test.all); !slices.Equal(got, test.want) {
			t.Errorf("%s: lacks %v, want %v", name, got, test.want)
		}
	}
	if got := (State{}).MissingKeys([]byte("nonsense"), true); got != nil {
		t.Errorf("nonsense has the keys %v", got)
	}
}

func TestKeyIsKeptUnlessReplaced(t *testing.T) {
	first := scheme(t, Secretbox, Scheme{}, false, "secrets")
	if kept := scheme(t, Secretbox, first, false, "configmaps"); kept.Provider != first.Provider ||
		kept.Created != first.Created {
		t.Error("a change of the resources replaced the key")
	}
	if replaced := scheme(t, Secretbox, first, true, "secrets"); replaced.Provider == first.Provider {
		t.Error("the key was not replaced")
	}
	if !first.Same(Scheme{Resources: []string{"secrets"}, Provider: Provider{Kind: Secretbox}}) {
		t.Error("a scheme differs from the spec that it was created for")
	}
}

func TestRestored(t *testing.T) {
	first := scheme(t, Secretbox, Scheme{}, false, "secrets")
	second := scheme(t, Secretbox, first, true, "secrets")
	extended := scheme(t, Secretbox, second, false, "secrets", "configmaps")
	plugin := Scheme{Resources: []string{"secrets"}, Provider: Provider{Kind: KMS, Name: "vault"}}
	key := func(s Scheme) string { return "secretbox:v1:" + s.Provider.Name }
	for name, c := range map[string]struct {
		former  State
		keys    []string
		spec    Scheme
		want    Scheme
		missing int
		retired Retired
	}{
		"nothing is encrypted": {State{Current: first}, nil, first, Scheme{}, 0, nil},
		"former key":           {State{Current: first}, []string{key(first)}, second, first, 0, nil},
		"key of a change": {
			State{Current: first, Next: &second}, []string{key(first), key(second)}, second, first, 0, nil,
		},
		"replaced since the backup": {State{Current: second}, []string{key(first)}, second, second, 1, nil},
		"no keys":                   {State{}, []string{key(first), key(second)}, second, Scheme{}, 2, nil},
		"plugin of the spec":        {State{}, []string{"kms:v2:vault"}, plugin, plugin, 0, nil},
		"plugin and a former key":   {State{}, []string{"kms:v2:vault", key(first)}, plugin, Scheme{}, 2, nil},
		"a retired key":             {State{Current: second}, []string{key(first)}, second, first, 0, Retired{first}},
		"retired in between": {
			State{Current: second}, []string{key(first), key(second)}, second, second, 0, Retired{first},
		},
		"two retired keys":    {State{}, []string{key(first), key(second)}, plugin, second, 0, Retired{second, first}},
		"one of two is known": {State{}, []string{key(first), key(second)}, plugin, Scheme{}, 1, Retired{first}},
		"one key twice": {
			State{Current: extended, Previous: &second}, []string{key(first), key(second)}, second, extended, 0, Retired{first},
		},
	} {
		got, missing := c.former.Restored(c.keys, c.spec, c.retired)
		if got.Current.Provider != c.want.Provider || len(missing) != c.missing {
			t.Errorf("%s: %+v without %v", name, got, missing)
		}
	}
}

// TestRetired checks which schemes are kept for backups after the last stage of a change.
func TestRetired(t *testing.T) {
	first := scheme(t, Secretbox, Scheme{}, false, "secrets")
	second := scheme(t, Secretbox, first, true, "secrets")
	extended := scheme(t, Secretbox, second, false, "secrets", "configmaps")
	plugin := Scheme{Resources: []string{"secrets"}, Provider: Provider{Kind: KMS, Name: "vault"}}
	var kept Retired
	for _, change := range []struct{ from, to Scheme }{
		{Scheme{}, first}, {first, second}, {second, extended}, {extended, plugin}, {plugin, first},
	} {
		for range 2 { // the last stage is repeated after a crash of the operator
			kept = kept.With(State{Current: change.from, Next: &change.to}.Promote())
		}
	}
	if len(kept) != 2 || kept[0].Provider != extended.Provider || kept[1].Provider != first.Provider {
		t.Fatalf("kept %+v", kept)
	}
	parsed, err := ParseRetired(kept.Data())
	if err != nil || len(parsed) != 2 {
		t.Errorf("%+v, %v", parsed, err)
	}
	needed := kept.Needed([]string{first.key(), "secretbox:v1:another", "kms:v2:vault"})
	if len(needed) != 1 || needed[0].Provider != first.Provider || len(kept.Needed(nil)) != 0 {
		t.Errorf("needed %+v", needed)
	}
	if _, err := ParseRetired([]byte(`[{"Resources": []}]`)); err == nil {
		t.Error("a misspelled field was accepted")
	}
}

// TestParseIsStrict checks that a misspelled field in an edited Secret is an error, and is not read as a missing key.
func TestParseIsStrict(t *testing.T) {
	for text, valid := range map[string]bool{
		``: true, `{"current": {"resources": ["secrets"]}}`: true, `{"Current": {"resources": ["secrets"]}}`: false,
		`{"current": {"Resources": ["secrets"]}}`: false, `{"current": {}, "current": {}}`: false,
		`{"next": {"key": "x"}}`: false, `{`: false,
	} {
		if _, err := Parse([]byte(text)); (err == nil) != valid {
			t.Errorf("%s: %v", text, err)
		}
	}
}
