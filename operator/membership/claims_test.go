package membership

import "slices"

// unprovenReason is Member.Unproven.
func (w *world) unprovenReason(m Member) string {
	if !w.unproven[m.Name] || w.healthy(m) || m.Learner {
		return ""
	}
	return "another member has restarted since it last ran"
}

// changeClaim executes an action on a claim. If the claim has changed since it was observed, changeClaim does nothing,
// like an API server that detects a conflict. The test fails if the action deletes a claim whose volume may have the
// only copy of acknowledged writes.
func (w *world) changeClaim(a Action, seen snapshot) {
	claim := w.claims[a.Name]
	i := slices.IndexFunc(seen.Claims, func(c Claim) bool { return c.Name == a.Name })
	if claim == nil || i < 0 || *claim != seen.Claims[i] {
		return // a conflict
	}
	switch a.Kind {
	case KeepClaim:
		claim.Kept = true
		return
	case ReleaseClaim:
		w.released = append(w.released, a.Name)
	case DeleteClaim:
		if claim.Kept || w.soleCopies[a.Name] {
			w.t.Errorf("%s: it may have the only copy of acknowledged writes", describe(a))
		}
	}
	delete(w.claims, a.Name)
	delete(w.dataOf, a.Name)
}

// recordRemoval remembers that a voter is removed while it may have the only copy of acknowledged writes.
func (w *world) recordRemoval(a Action) {
	m, claim := w.member(a.Name), w.claims[a.Name]
	intact := claim != nil && !claim.Lost && !claim.Replaced
	if m != nil && m.ID == a.ID && w.unprovenReason(*m) != "" && intact && !w.stale {
		w.soleCopies[a.Name] = true
	}
}
