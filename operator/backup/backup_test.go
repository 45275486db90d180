package backup

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"quorate.dev/operator/schedule"
)

// TestScripts executes the scripts in testdata. A line is a command with, after "=>", the expected result of Decide,
// Expired or Health:
//
//	schedule EXPRESSION          zone NAME         policy POLICY       deadline DURATION
//	suspend BOOL                 hibernate BOOL                       limits COUNT AGE FAILED
//	at TIME => DECISION          decides with the active backups, and applies the decision
//	finish NAME TIME             fail NAME TIME
//	delete NAME                  created TIME                         health TIME => CONDITION
//	expire TIME => NAMES         deletes what has expired
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { replay(t, file) })
	}
}

// replayer is the state of a script that is being executed.
type replayer struct {
	expression, zone string
	observation      Observation
	limits           Limits
	finished         []Finished
}

func replay(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &replayer{observation: Observation{Policy: Forbid, Created: at(t, "2026-01-01T00:00:30Z")}}
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		command, want, checked := strings.Cut(line, "=>")
		got := r.execute(t, strings.Fields(command))
		if checked && got != strings.TrimSpace(want) {
			t.Errorf("%s:%d: %s=> %s", file, number, command, got)
		}
	}
}

func (r *replayer) execute(t *testing.T, words []string) string {
	t.Helper()
	o := &r.observation
	switch words[0] {
	case "schedule":
		r.expression = strings.Join(words[1:], " ")
	case "zone":
		r.zone = words[1]
	case "policy":
		o.Policy = Concurrency(words[1])
	case "deadline":
		o.Deadline = duration(t, words[1])
	case "suspend":
		o.Suspend = words[1] == "true"
	case "hibernate":
		o.Hibernated = words[1] == "true"
	case "limits":
		var count int
		fmt.Sscan(words[1], &count)
		r.limits = Limits{Age: duration(t, words[2]), Count: ptr.To(count)}
		fmt.Sscan(words[3], &r.limits.Failed)
	case "finish", "fail":
		o.Active = slices.DeleteFunc(o.Active, func(name string) bool { return name == words[1] })
		r.finished = append(r.finished, Finished{words[1], at(t, words[2]), words[0] == "fail"})
	case "delete":
		r.finished = slices.DeleteFunc(r.finished, func(f Finished) bool { return f.Name == words[1] })
	case "created":
		o.Created = at(t, words[1])
	case "at":
		return r.decide(t, at(t, words[1]))
	case "health":
		return r.health(t, at(t, words[1]))
	case "expire":
		expired := Expired(r.finished, r.limits, at(t, words[1]))
		r.finished = slices.DeleteFunc(r.finished, func(f Finished) bool { return slices.Contains(expired, f.Name) })
		return strings.Join(expired, " ")
	default:
		t.Fatalf("unknown command %q", words[0])
	}
	return ""
}

// health returns the result of Health for the finished backups, with one hour of grace.
func (r *replayer) health(t *testing.T, now time.Time) string {
	t.Helper()
	parsed, err := schedule.Parse(r.expression, r.zone)
	if err != nil {
		return "error: " + err.Error()
	}
	record := Record{Now: now, Created: r.observation.Created, Suspended: r.observation.Suspend, Grace: time.Hour}
	record.Hibernated = r.observation.Hibernated
	record.Handled, record.Pending = !r.observation.Last.IsZero(), len(r.observation.Active) > 0
	record.Newest = NewestOf(r.finished, now)
	healthy, reason, message := Health(parsed, record)
	return fmt.Sprintf("%t %s: %s", healthy, reason, message)
}

func (r *replayer) decide(t *testing.T, now time.Time) string {
	t.Helper()
	parsed, err := schedule.Parse(r.expression, r.zone)
	if err != nil {
		return "error: " + err.Error()
	}
	o := &r.observation
	o.Now = now
	d := Decide(parsed, *o)
	var out []string
	for _, name := range d.Delete {
		out = append(out, "delete "+name)
		o.Active = slices.DeleteFunc(o.Active, func(active string) bool { return active == name })
	}
	if d.Create {
		name := d.Handled.UTC().Format("0102-1504")
		out, o.Active = append(out, "create "+name), append(o.Active, name)
	}
	if d.Missed != "" {
		out = append(out, "skip "+d.Handled.UTC().Format("0102-1504")+": "+d.Missed)
	}
	if !d.Handled.IsZero() {
		o.Last = d.Handled
	}
	if d.Next.IsZero() {
		return strings.Join(append(out, "next never"), ", ")
	}
	return strings.Join(append(out, "next "+d.Next.UTC().Format("0102-1504")), ", ")
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	value, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	value, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestAdvance(t *testing.T) {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const soon, minute, later, expired = time.Second, time.Minute, 6 * time.Minute, 2 * time.Hour
	lastAttempt := Attempt{Attempts: MaxAttempts, Pod: PodFailed, Failure: "broken"}
	starting := Attempt{Attempts: 1, Pod: PodStarting, PodCreated: created}
	for name, test := range map[string]struct {
		after   time.Duration
		attempt Attempt
		want    Step
		reason  string
	}{
		"new":                         {minute, Attempt{}, Start, ""},
		"cluster without quorum":      {minute, Attempt{Blocked: "no quorum"}, Wait, "no quorum"},
		"recorded":                    {minute, Attempt{Attempts: 1}, Run, ""},
		"recorded, quorum lost since": {minute, Attempt{Attempts: 1, Blocked: "no quorum"}, Wait, "no quorum"},
		"running":                     {minute, Attempt{Attempts: 1, Pod: PodActive}, Wait, ""},
		"running, quorum lost since":  {minute, Attempt{Attempts: 1, Pod: PodActive, Blocked: "no quorum"}, Wait, ""},
		"terminating":                 {minute, Attempt{Attempts: 1, Pod: PodTerminating}, Wait, ""},
		"succeeded":                   {minute, Attempt{Attempts: 1, Pod: PodSucceeded}, Collect, ""},
		"failed":                      {minute, Attempt{Attempts: 1, Pod: PodFailed, Failure: "broken"}, Start, "broken"},
		"failed, no quorum": {
			minute, Attempt{Attempts: 1, Pod: PodFailed, Blocked: "no quorum"}, Wait, "no quorum",
		},
		"failed for the last time":       {minute, lastAttempt, Fail, "broken"},
		"timed out while it ran":         {expired, Attempt{Attempts: 1, Pod: PodActive}, Fail, "timed out after 1h0m0s"},
		"timed out while it was blocked": {expired, Attempt{Blocked: "no quorum"}, Fail, "timed out after 1h0m0s: no quorum"},
		"timed out after a failure":      {expired, Attempt{Attempts: 1, Pod: PodFailed, Failure: "broken"}, Fail, "broken"},
		"success seen after the timeout": {expired, Attempt{Attempts: 1, Pod: PodSucceeded}, Collect, ""},
		"pod starts":                     {soon, starting, Wait, ""},
		"pod does not start": {
			later, starting, Fail, "the pod did not start within 5m0s: its containers are waiting",
		},
		"pod started late":       {later, Attempt{Attempts: 1, Pod: PodActive, PodCreated: created}, Wait, ""},
		"pod cannot start":       {soon, starting.with("no node"), Wait, "no node"},
		"pod still cannot start": {later, starting.with("no node"), Fail, "the pod did not start within 5m0s: no node"},
		"missing Secret":         {soon, Attempt{Missing: "no Secret", Blocked: "no quorum"}, Wait, "no Secret"},
		"Secret still missing":   {later, Attempt{Missing: "no Secret"}, Fail, "timed out after 5m0s: no Secret"},
	} {
		a := test.attempt
		a.Created, a.Now, a.Timeout, a.StartTimeout = created, created.Add(test.after), time.Hour, 5*time.Minute
		if a.Pod == "" {
			a.Pod = PodMissing
		}
		if step, reason := Advance(a); step != test.want || reason != test.reason {
			t.Errorf("%s: got %s %q, want %s %q", name, step, reason, test.want, test.reason)
		}
	}
}

func (a Attempt) with(obstacle string) Attempt {
	a.Obstacle = obstacle
	return a
}
