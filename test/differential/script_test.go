package differential

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseScript(t *testing.T) {
	script, err := ParseScript("s", "A comment.\n\n--- first\n@capture rv metadata.resourceVersion\n@head\nPOST "+
		"/a?b=c\nAccept: x/y\n\n{\n}\n\n--- second\nGET /a\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(script.Cases) != 2 {
		t.Fatalf("%d cases", len(script.Cases))
	}
	first := script.Cases[0]
	if first.Name != "first" || first.Method != "POST" || first.Path != "/a?b=c" ||
		first.Header["Accept"] != "x/y" || first.Body != "{\n}" {
		t.Errorf("got %+v", first)
	}
	if arguments, ok := first.directive("capture"); !ok || arguments != "rv metadata.resourceVersion" {
		t.Errorf("got %q", arguments)
	}
	for _, text := range []string{
		"--- no request\n", "--- a\nGET /\n--- a\nGET /\n", "--- bad header\nGET /\nnonsense\n",
	} {
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

// began is the time at which the servers of these tests were started.
var began = time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)

// normalized returns the normalized responses of a server to a script.
func normalized(script *Script, answers []Answer) string {
	return strings.Join(newNormalizer(script, answers, began, nil).Texts(script, answers), "\n")
}

// TestNormalize compares two servers that differ only in values that a server may choose, and two that differ in
// others.
func TestNormalize(t *testing.T) {
	script := &Script{Cases: []Case{{Name: "a"}, {Name: "b"}}}
	answers := func(uid, first, second, data string) string {
		body := func(revision, data string) []byte {
			return []byte(`{"kind":"X","metadata":{"name":"g-` + first + `","generateName":"g-","uid":"` + uid +
				`","resourceVersion":"` + revision +
				`","creationTimestamp":"2026-05-05T12:00:0` + first[:1] + `Z"},"data":"` + data + `"}`)
		}
		header := http.Header{"Content-Type": {"application/json"}, "Date": {first}}
		both := []Answer{
			{Code: 200, Header: header, Body: body(first, data)}, {Code: 200, Header: header, Body: body(second, data)},
		}
		both[0].At, both[1].At = began.Add(time.Minute), began.Add(time.Minute)
		return normalized(script, both)
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

// TestNormalizeFields checks that values that servers choose are distinguished from all others.
func TestNormalizeFields(t *testing.T) {
	const asked = `{"spec":{"nodePort":30040,"clusterIP":"10.0.0.10"},"expiration":"2026-05-05T12:00:30Z"}`
	script := &Script{Cases: []Case{{Name: "a", Body: asked}}}
	show := func(body string) string {
		return normalized(script, []Answer{{
			Body: []byte(body), At: began.Add(time.Minute), Reference: &Reference{Name: "rv", Revision: 7},
		}})
	}
	token := func(claims string) string {
		return "eyJhIjoxfQ." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x"
	}
	for _, check := range []struct {
		name, one, other string
		equal            bool
	}{
		{"times of the clock", `{"a":"2026-05-05T12:00:10Z"}`, `{"a":"2026-05-05T12:01:01Z"}`, true},
		{"precision", `{"a":"2026-05-05T12:00:10Z"}`, `{"a":"2026-05-05T12:00:10.000000Z"}`, false},
		{"time of a client", `{"a":"2020-01-01T00:00:00Z"}`, `{"a":"2026-05-05T12:00:10Z"}`, false},
		{"time requested", `{"a":"2026-05-05T12:00:30Z"}`, `{"a":"2026-05-05T12:00:31Z"}`, false},
		{"time ahead, later answer", `{"a":"2026-05-05T12:01:29Z"}`, `{"a":"2026-05-05T12:01:30Z"}`, true},
		{"times ahead", `{"a":"2026-05-05T12:01:30Z"}`, `{"a":"2026-05-05T12:01:50Z"}`, false},
		{"in a message", `{"a":"it is 2026-05-05T12:00:10Z"}`, `{"a":"it is 2020-01-01T00:00:00Z"}`, false},
		{"text like an age", `{"a":"30s"}`, `{"a":"31s"}`, false},
		{"age", `{"cells":["a","30s"]}`, `{"cells":["a","31s"]}`, true},
		{
			"chosen ports", `{"x":[{"nodePort":31000},{"nodePort":31001}]}`,
			`{"x":[{"nodePort":32000},{"nodePort":31001}]}`, true,
		},
		{
			"the same port", `{"x":[{"nodePort":31000},{"nodePort":31001}]}`,
			`{"x":[{"nodePort":31000},{"nodePort":31000}]}`, false,
		},
		{"port requested", `{"nodePort":30040}`, `{"nodePort":30041}`, false},
		{"port in a message", `{"a":"80:30040/TCP"}`, `{"a":"80:30041/TCP"}`, false},
		{"chosen addresses", `{"clusterIP":"10.0.0.20"}`, `{"clusterIP":"10.0.0.21"}`, true},
		{"address requested", `{"clusterIP":"10.0.0.10"}`, `{"clusterIP":"10.0.0.100"}`, false},
		{
			"revision of a list", `{"kind":"List","metadata":{"resourceVersion":"7"}}`,
			`{"kind":"List","metadata":{"resourceVersion":"8"}}`, false,
		},
		{
			"revision 0 of a list", `{"kind":"List","metadata":{"resourceVersion":"0"}}`,
			`{"kind":"List","metadata":{"resourceVersion":"8"}}`, false,
		},
		{
			"no revision of a list", `{"kind":"List","metadata":{"resourceVersion":""}}`,
			`{"kind":"List","metadata":{"resourceVersion":"8"}}`, false,
		},
		{"bookmark", `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6"}}}`,
			`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}`, false},
		{
			"tokens", `{"token":"` + token(`{"iat":100,"exp":160,"sub":"a"}`) + `"}`,
			`{"token":"` + token(`{"iat":200,"exp":260,"sub":"a"}`) + `"}`, true,
		},
		{
			"life of a token", `{"token":"` + token(`{"iat":100,"exp":160}`) + `"}`,
			`{"token":"` + token(`{"iat":100,"exp":170}`) + `"}`, false,
		},
		{
			"page", `{"kind":"List","metadata":{"continue":"eyJydiI6Nn0"}}`,
			`{"kind":"List","metadata":{"continue":"eyJydiI6N30"}}`, false,
		},
	} {
		if one, other := show(check.one), show(check.other); (one == other) != check.equal {
			t.Errorf("%s: %s\n%s", check.name, one, other)
		}
	}
}

// TestMovingRevisions checks that revisions of lists are compared only if a case has @revision.
func TestMovingRevisions(t *testing.T) {
	orNewer := &Reference{Name: "rv", Revision: 7, OrNewer: true}
	list := func(revision string, reference *Reference) string {
		body := []byte(`{"kind":"List","metadata":{"resourceVersion":"` + revision + `"}}`)
		return normalized(&Script{Cases: make([]Case, 1)}, []Answer{{Body: body, Reference: reference}})
	}
	if list("8", nil) != list("9", nil) || list("7", orNewer) != list("9", orNewer) ||
		list("6", orNewer) == list("7", orNewer) {
		t.Error(list("8", nil), list("9", nil), list("6", orNewer), list("7", orNewer), list("9", orNewer))
	}
}

// TestUnmetWaits checks that a wait that times out is a failure, even if both servers agree.
func TestUnmetWaits(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte("{\"a\":1}\n"))
	}))
	t.Cleanup(server.Close)
	script, err := ParseScript("s",
		"--- open\n@open w\nGET /\n--- comes\nEVENTS w 1\n--- ends\nEVENTS w 1\n--- refused\n@open r\nGET /refused\n--- "+
			"never opened\nEVENTS r 1\n--- rightly not opened\n@refused\nEVENTS r 1\n--- captured\n@capture a a\nGET /\n--- "+
			"not captured\n@capture b b\nGET /\n--- no revision\n@revision b\nGET /\n--- a revision\n@revision a\nGET /\n")
	if err != nil {
		t.Fatal(err)
	}
	answers, err := Run(t.Context(), &Server{Name: "test", Origin: server.URL, admin: server.Client()}, script)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ends", "never opened", "not captured", "no revision"}
	var got []string
	for i, answer := range answers {
		if len(answer.Failures) > 0 {
			got = append(got, script.Cases[i].Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
