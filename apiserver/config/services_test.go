package config

import (
	"net/netip"
	"slices"
	"testing"
)

func TestServiceRanges(t *testing.T) {
	for text, want := range map[string][]string{
		"":                             {"10.0.0.0/24"},
		"10.96.0.0/12":                 {"10.96.0.0/12"},
		"10.0.0.5/24":                  {"10.0.0.0/24"},
		"010.000.002.000/24":           {"10.0.2.0/24"},
		"10.0.0.0/20,fd00:10::/112":    {"10.0.0.0/20", "fd00:10::/112"},
		"fd00:10::/112,10.0.0.0/20":    {"fd00:10::/112", "10.0.0.0/20"},
		"10.0.0.0":                     nil,
		"10.0.0.0/33":                  nil,
		"10.0.0.0/30":                  nil,
		"10.0.0.0/24,10.1.0.0/24":      nil,
		"10.0.0.0/24,fd00::/112,fd::/": nil,
		"10.0.0.0/24,":                 nil,
	} {
		ranges, err := (&API{ServiceClusterIPRange: text}).ServiceRanges()
		var got []string
		for _, prefix := range ranges {
			got = append(got, prefix.String())
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: got %v and %v, want %v", text, got, err, want)
		}
		if slices.ContainsFunc(ranges, func(prefix netip.Prefix) bool { return prefix.Addr().Is4In6() }) {
			t.Errorf("%q: %v is IPv4 written as IPv6", text, ranges)
		}
	}
}
