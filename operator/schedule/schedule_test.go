package schedule

import (
	"testing"
	"time"
)

// TestOpening combines two windows in Berlin: Saturdays from 02:00 to 06:00, and every day from 23:30 to 00:30.
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

// TestLast checks schedules with many and with rare times, and schedules that have been suspended for years.
func TestLast(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 30, 30, 0, time.UTC)
	for expression, wanted := range map[string]struct {
		after time.Time
		want  string
	}{
		"* * 1 1 *":     {time.Time{}, "2026-01-01T23:59:00Z"}, // has more than a thousand times on one day
		"* * * * *":     {now.AddDate(-3, 0, 0), "2026-03-01T12:30:00Z"},
		"0 0 29 2 *":    {time.Time{}, "2024-02-29T00:00:00Z"},
		"0 0 30 2 *":    {time.Time{}, "0001-01-01T00:00:00Z"},
		"*/7 1 * * 1":   {now.AddDate(0, 0, -30), "2026-02-23T01:56:00Z"},
		"30 12 * * *":   {now.Add(-10 * time.Second), "0001-01-01T00:00:00Z"},
		"15,45 * * * *": {now.Add(-time.Hour), "2026-03-01T12:15:00Z"},
	} {
		parsed, err := Parse(expression, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.Last(wanted.after, now).Format(time.RFC3339); got != wanted.want {
			t.Errorf("%s: got %s, want %s", expression, got, wanted.want)
		}
	}
}
