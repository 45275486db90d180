package invariants

import (
	"fmt"
	"strings"
	"testing"
)

// state returns a cluster with voters a, b, ..., of which some are healthy.
func state(voters, healthy int) State {
	s := State{Voters: map[string]Voter{}, Readable: 5, Acknowledged: 5}
	for i := range voters {
		s.Voters[string(rune('a'+i))] = Voter{Healthy: i < healthy, Claim: true}
	}
	return s
}

func with(s State, change func(*State)) State {
	change(&s)
	return s
}

func TestCheck(t *testing.T) {
	signer := func(current string, trusted ...string) func(*State) {
		return func(s *State) { s.Signers = map[string]Signer{"ca": {Current: current, Trusted: trusted}} }
	}
	for name, c := range map[string]struct {
		before, after State
		want          string // violation in the step of an operator; "": none
	}{
		"restart":                  {state(3, 3), state(3, 2), ""},
		"restart of a second":      {state(3, 2), state(3, 1), "quorum was lost"},
		"restart of the only one":  {state(1, 1), state(1, 0), ""},
		"hibernation":              {state(3, 2), with(state(3, 1), func(s *State) { s.Stopping = true }), ""},
		"removal":                  {state(3, 3), state(2, 2), ""},
		"removal of two":           {state(5, 5), state(3, 3), "removed at once"},
		"removal without a quorum": {state(3, 1), state(2, 1), "without a quorum"},
		"removal of a healthy one while another is down": {
			state(3, 2), with(state(3, 2), func(s *State) { delete(s.Voters, "a") }), "quorum was lost",
		},
		"claim of a voter": {
			state(3, 3), with(state(3, 3), func(s *State) { s.Voters["a"] = Voter{Healthy: true} }), "claim of voter a",
		},
		"two learners":    {state(3, 3), with(state(3, 3), func(s *State) { s.Learners = []string{"x", "y"} }), "learners"},
		"lost write":      {state(3, 3), with(state(3, 3), func(s *State) { s.Readable = 4 }), "writes are lost"},
		"without quorum":  {state(3, 1), with(state(3, 1), func(s *State) { s.Readable = -1 }), ""},
		"replaced signer": {with(state(3, 3), signer("1", "1")), with(state(3, 3), signer("2", "2")), "no longer trusted"},
		"staged signer":   {with(state(3, 3), signer("1", "1", "2")), with(state(3, 3), signer("2", "2", "1")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := fmt.Sprint(Check([]Step{{After: c.before}, {Operator: true, Action: "act", After: c.after}}))
			if c.want == "" && got != "[]" || !strings.Contains(got, c.want) {
				t.Errorf("Check() = %s, want %q", got, c.want)
			}
		})
	}
}

// TestDeletedSigner checks that a Secret that was deleted and created again has to trust the signer that it contained
// before.
func TestDeletedSigner(t *testing.T) {
	former, none, next := state(1, 1), state(1, 1), state(1, 1)
	former.Signers = map[string]Signer{"ca": {Current: "1", Trusted: []string{"1"}}}
	next.Signers = map[string]Signer{"ca": {Current: "2", Trusted: []string{"2"}}}
	history := []Step{{After: former}, {Action: "delete", After: none}, {Operator: true, Action: "create", After: next}}
	if errs := Check(history); len(errs) != 1 {
		t.Errorf("Check() = %v, want one violation", errs)
	}
}
