package schedule

import (
	"testing"
	"time"
)

// TestOpening has two windows: Saturdays from 02:00 to 06:00 and every day from 23:30 to 00:30, in Berlin.
func TestOpening(t *testing.T) {
	var windows []Window
	for expression, duration := range map[string]time.Duration{"0 2 * * SAT": 4 * time.Hour, "30 23 * * *": time.Hour} {
		starts, err := Parse(expression, "Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		windows = append(windows, Window{starts, duration})
	}
	for _, c := range []struct{ at, want string }{
		{"2026-01-02T12:00:00+01:00", "2026-01-02T23:30:00+01:00"}, // a Friday
		{"2026-01-02T23:30:00+01:00", "2026-01-02T23:30:00+01:00"},
		{"2026-01-03T00:29:59+01:00", "2026-01-03T00:29:59+01:00"},
		{"2026-01-03T00:30:00+01:00", "2026-01-03T02:00:00+01:00"},
		{"2026-01-03T05:59:59+01:00", "2026-01-03T05:59:59+01:00"},
		{"2026-01-03T06:00:00+01:00", "2026-01-03T23:30:00+01:00"},
		{"2026-07-04T05:00:00+02:00", "2026-07-04T05:00:00+02:00"}, // summer time
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := Opening(windows, at); got.Format(time.RFC3339) != c.want {
			t.Errorf("from %s: %s, want %s", c.at, got.Format(time.RFC3339), c.want)
		}
	}
	if now := time.Now(); !Opening(nil, now).Equal(now) {
		t.Error("closed without windows")
	}
	never, err := Parse("0 0 30 2 *", "")
	if err != nil {
		t.Fatal(err)
	}
	if at := Opening([]Window{{never, time.Hour}}, time.Now()); !at.IsZero() {
		t.Errorf("opens at %s", at)
	}
}
