package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/version"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/metrics"
)

// slow is a plugin that takes some seconds of the clock.
type slow struct {
	clock   *testclock.FakePassiveClock
	seconds time.Duration
	refuse  error
}

func (s slow) Admit(context.Context, *Attributes) error {
	s.clock.SetTime(s.clock.Now().Add(s.seconds * time.Second))
	return s.refuse
}

func (s slow) Validate(ctx context.Context, a *Attributes) error { return s.Admit(ctx, a) }

// never is a Selector that selects no writes.
type never struct{}

func (never) Selects(*Attributes) bool { return false }

// observations returns the number and the sum in seconds of the observations of each series of admission metrics.
func observations(t *testing.T, registry *metrics.Registry) map[string]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{
		"apiserver_admission_controller_admission_duration_seconds":   "plugin",
		"apiserver_admission_step_admission_duration_seconds":         "step",
		"apiserver_admission_step_admission_duration_seconds_summary": "summary",
	}
	found := map[string]string{}
	for _, family := range families {
		kind, ok := short[family.GetName()]
		if !ok {
			continue
		}
		for _, series := range family.GetMetric() {
			name := kind
			for _, label := range series.GetLabel() { // sorted by name: name, operation, rejected, type
				name += " " + label.GetValue()
			}
			found[name] = observed(series)
		}
	}
	return found
}

func observed(series *dto.Metric) string {
	if histogram := series.GetHistogram(); histogram != nil {
		return fmt.Sprintf("%d in %vs", histogram.GetSampleCount(), histogram.GetSampleSum())
	}
	return fmt.Sprintf("%d in %vs", series.GetSummary().GetSampleCount(), series.GetSummary().GetSampleSum())
}

// TestMetrics observes a write that is admitted and rejected by validation. As with kube-apiserver, a plugin that does
// not select the write is counted, and a check that is not a plugin of kube-apiserver has no series of its own.
func TestMetrics(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(time.Unix(0, 0))
	registry := metrics.NewRegistry(version.Info{})
	operations := []Operation{Create}
	one, two := slow{clock: clock, seconds: 1}, slow{clock: clock, seconds: 2}
	rejecting := slow{clock: clock, seconds: 4, refuse: errors.New("no")}
	chain := &Chain{Metrics: NewMetrics(registry, clock), Plugins: []Plugin{
		{Name: "One", Operations: operations, Mutator: one, Validator: one},
		{Operations: operations, Mutator: two},
		{Name: "Unselected", Operations: operations, Mutator: one, Selector: never{}},
		{Name: "Rejecting", Operations: operations, Validator: rejecting},
		{Name: "Last", Operations: operations, Validator: one},
	}}
	write := func() {
		if err := chain.Admit(t.Context(), &Attributes{Operation: Create}); err != nil {
			t.Error(err)
		}
		if err := chain.Validate(t.Context(), &Attributes{Operation: Create}); !errors.Is(err, rejecting.refuse) {
			t.Errorf("got %v", err)
		}
	}
	want := map[string]string{
		"plugin One CREATE false admit":         "1 in 1s",
		"plugin Unselected CREATE false admit":  "1 in 0s",
		"plugin One CREATE false validate":      "1 in 1s",
		"plugin Rejecting CREATE true validate": "1 in 4s",
		"step CREATE false admit":               "1 in 3s",
		"step CREATE true validate":             "1 in 5s",
		"summary CREATE false admit":            "1 in 3s",
		"summary CREATE true validate":          "1 in 5s",
	}
	// The cached series must not outlive a reset, after which the same write is observed again.
	for _, when := range []string{"first", "after a reset"} {
		write()
		if got := observations(t, registry); !maps.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
		registry.Reset()
	}
}

// TestInternalWritesHaveNoSteps: the server's own writes are measured for the plugins that see them, and are not
// counted as admission steps of requests.
func TestInternalWritesHaveNoSteps(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(time.Unix(0, 0))
	registry := metrics.NewRegistry(version.Info{})
	chain := &Chain{Metrics: NewMetrics(registry, clock), Plugins: []Plugin{
		{Name: "Guard", Operations: []Operation{Update}, Mutator: slow{clock: clock, seconds: 1}, Internal: true},
		{Name: "Other", Operations: []Operation{Update}, Mutator: slow{clock: clock, seconds: 1}},
	}}
	if err := chain.Admit(t.Context(), &Attributes{Operation: Update, Internal: true}); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(observations(t, registry)))
	if want := []string{"plugin Guard UPDATE false admit"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
