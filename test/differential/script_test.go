package differential

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestParseScript(t *testing.T) {
	script, err := ParseScript("s", "A comment.\n\n--- first\n@capture rv metadata.resourceVersion\n@head\nPOST /a?b=c\nAccept: x/y\n\n{\n}\n\n--- second\nGET /a\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(script.Cases) != 2 {
		t.Fatalf("%d cases", len(script.Cases))
	}
	first := script.Cases[0]
	if first.Name != "first" || first.Method != "POST" || first.Path != "/a?b=c" || first.Header["Accept"] != "x/y" || first.Body != "{\n}" {
		t.Errorf("got %+v", first)
	}
	if arguments, ok := first.directive("capture"); !ok || arguments != "rv metadata.resourceVersion" {
		t.Errorf("got %q", arguments)
	}
	for _, text := range []string{"--- no request\n", "--- a\nGET /\n--- a\nGET /\n", "--- bad header\nGET /\nnonsense\n"} {
		if _, err := ParseScript("s", text); err == nil {
			t.Errorf("accepted %q", text)
		}
	}
}

func TestCombinations(t *testing.T) {
	script, err := ParseScript("s", "--- all\n@each a - 1\n@head\n@each b x y\nGET /${b}?${a}\nAccept: ${b}\n\n{${a}}\n")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range script.Cases {
		got = append(got, c.Name+": "+c.Path+" "+c.Header["Accept"]+" "+c.Body)
		if _, ok := c.directive("head"); !ok || len(c.Directives) != 1 {
			t.Errorf("%s: directives %v", c.Name, c.Directives)
		}
	}
	want := []string{"all - x: /x? x {}", "all - y: /y? y {}", "all 1 x: /x?1 x {1}", "all 1 y: /y?1 y {1}"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNormalize compares two servers that differ only in what a server chooses, and two that differ in more.
func TestNormalize(t *testing.T) {
	script := &Script{Cases: []Case{{Name: "a"}, {Name: "b"}}}
	answers := func(uid, first, second, data string) string {
		body := func(revision, data string) []byte {
			return []byte(`{"kind":"X","metadata":{"name":"g-` + first + `","generateName":"g-","uid":"` + uid + `","resourceVersion":"` + revision +
				`","creationTimestamp":"2020-01-01T00:00:0` + first[:1] + `Z"},"data":"` + data + `"}`)
		}
		header := http.Header{"Content-Type": {"application/json"}, "Date": {first}}
		both := []Answer{{200, header, body(first, data), nil}, {200, header, body(second, data), nil}}
		return strings.Join(newNormalizer(both, nil).Texts(script, both), "\n")
	}
	one := answers("11111111-1111-1111-1111-111111111111", "10", "20", "v")
	if two := answers("22222222-2222-2222-2222-222222222222", "33", "77", "v"); one != two {
		t.Errorf("%s\ndiffers from\n%s", one, two)
	}
	for name, other := range map[string]string{
		"data":                answers("11111111-1111-1111-1111-111111111111", "10", "20", "w"),
		"order of revisions":  answers("11111111-1111-1111-1111-111111111111", "20", "10", "v"),
		"revision stays same": answers("11111111-1111-1111-1111-111111111111", "10", "10", "v"),
	} {
		if one == other {
			t.Errorf("%s: not told apart", name)
		}
	}
}
