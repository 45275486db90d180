package progress

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func show(style Style) string {
	var out strings.Builder
	d := New(&out, style)
	d.Show(Event{Event: "management", Name: "management", Kubeconfig: ".quorate/management.kubeconfig"})
	d.Show(Event{Event: "cluster", Name: "demo", State: "1/3 ready", Ready: 1, Replicas: 3})
	d.Show(Event{Event: "note", Message: "demo-1 ended"})
	ready := Event{
		Event: "cluster", Name: "demo", State: "3/3 ready (4.1s)", Available: true, Ready: 3, Replicas: 3,
		Kubeconfig: "demo.kubeconfig",
	}
	d.Show(ready)
	d.Show(ready)
	d.Show(Event{Event: "ready", Kubeconfig: "m", Clusters: map[string]string{"demo": "demo.kubeconfig"}})
	d.Forget("demo")
	return out.String()
}

func TestPlain(t *testing.T) {
	want := `management  kubeconfig .quorate/management.kubeconfig
demo        1/3 ready
demo-1 ended
demo        3/3 ready (4.1s)   kubeconfig demo.kubeconfig
demo        deleted
`
	if diff := cmp.Diff(want, show(Plain)); diff != "" {
		t.Error(diff)
	}
}

func TestTerminalShowsEachRowOnce(t *testing.T) {
	want := "management  kubeconfig .quorate/management.kubeconfig\n"
	second := want + "demo        1/3 ready\n"
	third := want + "demo        3/3 ready (4.1s)   kubeconfig demo.kubeconfig\n"
	got := show(Terminal)
	expected := want + "\x1b[1A\x1b[J" + second + "\x1b[2A\x1b[J" + "demo-1 ended\n" + second + "\x1b[2A\x1b[J" +
		third + "\x1b[2A\x1b[J" + want
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Error(diff)
	}
}

func TestJSON(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(show(JSON)), "\n")
	if got, want := lines[len(lines)-2], `{"event":"ready","kubeconfig":"m","clusters":{"demo":"demo.kubeconfig"}}`; got !=
		want {
		t.Errorf("the second last line is %s, want %s", got, want)
	}
	if len(lines) != 6 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

func TestHeight(t *testing.T) {
	for _, test := range []struct {
		text        string
		width, want int
	}{{"", 10, 1}, {"1234567890", 10, 1}, {"12345678901", 10, 2}, {"ääääääääää", 10, 1}, {"any", 0, 1}} {
		if got := height(test.text, test.width); got != test.want {
			t.Errorf("%q in %d columns: %d lines, want %d", test.text, test.width, got, test.want)
		}
	}
}
