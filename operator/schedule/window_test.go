package schedule

import (
	"testing"
	"time"
)

// TestWindows lists, for each window, points in time and the next time at which the window opens; "open" means that the
// window is open at that point.
func TestWindows(t *testing.T) {
	type opening struct{ at, want string }
	for name, w := range map[string]struct {
		schedule, zone string
		duration       time.Duration
		openings       []opening
	}{
		"UTC by default": {"0 2 * * *", "", 2 * time.Hour, []opening{
			{"2026-01-01T01:59:59Z", "2026-01-01T02:00:00Z"}, {"2026-01-01T02:00:00Z", "open"},
			{"2026-01-01T03:59:59Z", "open"}, {"2026-01-01T04:00:00Z", "2026-01-02T02:00:00Z"},
		}},
		"half an hour off": {"0 2 * * *", "Asia/Kolkata", time.Hour, []opening{
			{"2026-01-01T20:29:59Z", "2026-01-01T20:30:00Z"}, {"2026-01-01T21:29:59Z", "open"}, {
				"2026-01-01T21:30:00Z", "2026-01-02T20:30:00Z",
			},
		}},
		"day of the week in the zone": {"0 5 * * SAT", "Pacific/Auckland", time.Hour, []opening{ // still Friday in UTC
			{"2026-06-05T16:59:59Z", "2026-06-05T17:00:00Z"}, {"2026-06-05T17:30:00Z", "open"}, {
				"2026-06-06T05:00:00Z", "2026-06-12T17:00:00Z",
			},
		}},
		"over midnight": {"30 23 * * MON", "Europe/Berlin", 2 * time.Hour, []opening{
			{"2026-01-05T22:29:59Z", "2026-01-05T22:30:00Z"}, {"2026-01-05T22:59:59Z", "open"}, {"2026-01-05T23:00:00Z", "open"},
			{"2026-01-06T00:29:59Z", "open"}, {"2026-01-06T00:30:00Z", "2026-01-12T22:30:00Z"},
		}},
		"over the end of the year": {"0 20 31 12 *", "America/New_York", 8 * time.Hour, []opening{
			{"2027-01-01T01:00:00Z", "open"}, {"2027-01-01T08:59:59Z", "open"}, {"2027-01-01T09:00:00Z", "2028-01-01T01:00:00Z"},
		}},
		// The clocks of Berlin skip 02:00 to 03:00 on 2026-03-29 (01:00 UTC), and repeat that hour on 2026-10-25.
		"summer time begins in the window": {"0 1 * * *", "Europe/Berlin", 3 * time.Hour, []opening{
			{"2026-03-28T23:59:59Z", "2026-03-29T00:00:00Z"}, {"2026-03-29T02:59:59Z", "open"}, {
				"2026-03-29T03:00:00Z", "2026-03-29T23:00:00Z",
			},
		}},
		"summer time ends in the window": {"0 1 * * *", "Europe/Berlin", 3 * time.Hour, []opening{
			{"2026-10-24T22:59:59Z", "2026-10-24T23:00:00Z"}, {"2026-10-25T01:59:59Z", "open"}, {
				"2026-10-25T02:00:00Z", "2026-10-26T00:00:00Z",
			},
		}},
		"beginning that is skipped": {"30 2 * * *", "Europe/Berlin", time.Hour, []opening{
			{"2026-03-28T01:30:00Z", "open"}, {"2026-03-28T02:30:00Z", "2026-03-30T00:30:00Z"}, {
				"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z",
			},
		}},
		"beginning that is repeated": {"30 2 * * *", "Europe/Berlin", 30 * time.Minute, []opening{
			{"2026-10-25T00:29:59Z", "2026-10-25T00:30:00Z"}, {"2026-10-25T00:59:59Z", "open"},
			{"2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"}, {"2026-10-25T02:00:00Z", "2026-10-26T01:30:00Z"},
		}},
		// Lord Howe Island moves its clocks by half an hour. As in CronJobs, 02:30 may also count as 01:30, so the
		// window may stay open for half an hour longer.
		"southern summer time begins": {"30 1 * * *", "Australia/Lord_Howe", 2 * time.Hour, []opening{
			{"2026-10-03T14:59:59Z", "2026-10-03T15:00:00Z"}, {"2026-10-03T16:59:59Z", "open"}, {
				"2026-10-03T17:30:00Z", "2026-10-04T14:30:00Z",
			},
		}},
		"midnight that is skipped": {"0 0 * * *", "America/Havana", time.Hour, []opening{ // on 2026-03-08
			{"2026-03-07T05:59:59Z", "open"}, {"2026-03-07T06:00:00Z", "2026-03-09T04:00:00Z"},
			{"2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
		}},
		"seconds": {"0 2 * * *", "", 5 * time.Second, []opening{
			{"2026-01-01T01:59:59Z", "2026-01-01T02:00:00Z"}, {"2026-01-01T02:00:04Z", "open"}, {
				"2026-01-01T02:00:05Z", "2026-01-02T02:00:00Z",
			},
		}},
		"always open": {"0 * * * *", "Europe/Berlin", time.Hour, []opening{
			{"2026-03-29T00:59:59Z", "open"}, {"2026-03-29T01:00:00Z", "open"}, {"2026-10-25T00:30:00Z", "open"},
			{"2026-10-25T01:30:00Z", "open"},
		}},
		"longer than its period": {
			"0 0 * * *", "", 36 * time.Hour, []opening{{"2026-01-01T23:59:59Z", "open"}, {"2026-01-02T13:00:00Z", "open"}},
		},
		"leap day": {"0 0 29 2 *", "", time.Hour, []opening{{"2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"}}},
		"never":    {"0 0 31 6 *", "", time.Hour, []opening{{"2026-01-01T00:00:00Z", "never"}}},
	} {
		starts, err := Parse(w.schedule, w.zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range w.openings {
			at, err := time.Parse(time.RFC3339, o.at)
			if err != nil {
				t.Fatal(err)
			}
			got := "never"
			if opens := Opening([]Window{{starts, w.duration}}, at); opens.Equal(at) {
				got = "open"
			} else if !opens.IsZero() {
				got = opens.UTC().Format(time.RFC3339)
			}
			if got != o.want {
				t.Errorf("%s: at %s: %s, want %s", name, o.at, got, o.want)
			}
		}
	}
}
