package endtoend

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// documentedEvents are the rows of docs/availability.md, by the names of events.
var documentedEvents = map[string]string{
	"scale to five":                   "scaling from 3 to 5",
	"scale to three":                  "scaling from 5 to 3",
	"roll out an argument":            "new argument: all replicas restart one by one",
	"upgrade the image":               "new image",
	"renew the certificates":          "certificates renewed",
	"rotate the authorities":          "all authorities replaced, which restarts all members several times",
	"rotate the service-account keys": "service-account key replaced",
	"encrypt objects":                 "encryption enabled, objects rewritten",
	"rotate the encryption key":       "encryption key replaced, objects rewritten",
	"defragment":                      "defragmentation of all members by the operator",
	"back up":                         "a backup",
	"evict a follower":                "eviction of a follower",
	"evict the leader":                "eviction of the leader",
	"lose a volume":                   "volume of a follower lost",
	"stop the operator":               "the operator stops",
	"damage the data of a follower":   "`kill -9` of a follower", // the same for clients
	"kill a follower":                 "`kill -9` of a follower",
	"kill the leader":                 "`kill -9` of the leader",
	"freeze the leader":               "leader frozen (SIGSTOP)",
	"cut off the leader":              "leader cut off from the network",
}

// failedRequests returns a description of the requests that may fail within a budget.
func (b budget) failedRequests() string {
	switch {
	case len(b.reads) == 0 && len(b.writes) == 0:
		return "0"
	case b.reads[timedOut] == unlimited:
		return "requests on its connections"
	default:
		return "writes in flight, refused connections"
	}
}

// TestBudgetsAreDocumented compares the budgets of all events with the table in docs/availability.md.
func TestBudgetsAreDocumented(t *testing.T) {
	t.Setenv("QUORATE_AVAILABILITY", "full")
	text := must(os.ReadFile("../../docs/availability.md"))(t)
	s := &sandbox{}
	unseen := maps.Clone(documentedEvents)
	rows := map[string]bool{}
	for _, e := range slices.Concat(s.sandboxEvents(nil), s.clusterEvents(nil)) {
		delete(unseen, e.name)
		rows[documentedEvents[e.name]] = true
		row := fmt.Sprintf("\n| %s | %s | %.0f s |", documentedEvents[e.name],
			e.budget.failedRequests(), e.budget.gap.Seconds())
		if !strings.Contains(string(text), row) {
			t.Errorf("%s: docs/availability.md has no row %s", e.name, row)
		}
	}
	for name := range unseen {
		t.Errorf("no test has the event %q", name)
	}
	_, table, _ := strings.Cut(string(text), "| event |")
	table, _, _ = strings.Cut(table, "\n\n")
	for i, line := range strings.Split(table, "\n") {
		if row := strings.TrimSpace(strings.Split(strings.TrimPrefix(line, "|"), "|")[0]); i > 1 && !rows[row] {
			t.Errorf("docs/availability.md has the row %q, which is no event of the tests", row)
		}
	}
}
