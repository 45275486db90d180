package apiserver

import "testing"

func TestArguments(t *testing.T) {
	for want, arguments := range map[string][]string{
		"": {"", "--version", ""},
		`"quorate apiserver" does not take any arguments, got ["" "x" "y"]`: {"", "x", "--version", "y"},
	} {
		got := ""
		if err := Run(t.Context(), arguments); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", arguments, got, want)
		}
	}
}
