package stages

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/rotation"
)

// TestStages follows the decisions of one rotation of each kind: the status has the stage and the time at which it
// began, each stage has an event, and after the last one the status is empty.
func TestStages(t *testing.T) {
	for _, kind := range []Kind{Authorities, ServiceAccountKeys, Encryption} {
		h := ownedtest.NewHost(t, ownedtest.NewCluster())
		now := ownedtest.Now()
		for _, next := range []rotation.Stage{rotation.TrustBoth, rotation.Reissue, rotation.DropOld, rotation.None} {
			cluster := h.Cluster()
			stage, since := kind.Stage(cluster)
			var result Result
			now = now.Add(time.Minute)
			o := rotation.Observation{Stage: stage, Since: since, Now: now}
			h.Must(result.Apply(t.Context(), h.Objects, cluster, kind, o, rotation.Decision{
				Next: next, Reason: "requested", Restart: []string{"demo-0"}, Until: now.Add(time.Hour),
			}))
			stored, entered := kind.Stage(h.Cluster())
			if stored != next || next != rotation.None && !entered.Equal(now) || !result.Entered ||
				!slices.Equal(result.Restart, []string{"demo-0"}) {
				t.Errorf("%s: stage %q since %s, %+v", kind.Name, stored, entered, result)
			}
			if inProgress := len(result.Rotations) == 1; inProgress != (next != rotation.None) || result.Waiting {
				t.Errorf("%s, stage %q: %+v", kind.Name, next, result)
			}
			if events := h.Events(); len(events) != 1 || !strings.HasSuffix(events[0], ": requested") {
				t.Errorf("%s: events %q", kind.Name, events)
			}
		}
		if h.Cluster().Status.Rotations != nil {
			t.Errorf("%s: the status still has %+v", kind.Name, h.Cluster().Status.Rotations)
		}
	}
}

// TestUnchangedStage checks that a decision to stay in a stage writes nothing, and that it waits for a replica unless
// the decision names a time.
func TestUnchangedStage(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	var result Result
	unchanged := rotation.Decision{Next: rotation.Reissue, Waiting: "demo-0 is restarting"}
	h.Must(result.Apply(t.Context(), h.Objects, h.Cluster(), Encryption,
		rotation.Observation{Stage: rotation.Reissue}, unchanged))
	if result.Entered || !result.Waiting || result.Rotations[0].Message != "demo-0 is restarting" || len(h.Events()) != 0 {
		t.Errorf("result %+v", result)
	}
	err := result.Apply(t.Context(), h.Objects, h.Cluster(), Encryption,
		rotation.Observation{Stage: rotation.TrustBoth}, unchanged)
	if !errors.Is(err, ownedtest.ErrUnavailable) || result.Entered || len(h.Events()) != 0 {
		t.Errorf("a failed write: %v, %+v", err, result)
	}
}

// TestOutdatedOperator checks that an operator that has read the cluster before another one has entered a stage gets a
// conflict.
func TestOutdatedOperator(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	outdated := h.Cluster()
	d := rotation.Decision{Next: rotation.TrustBoth, Reason: "due"}
	h.Must(Enter(t.Context(), h.Objects, h.Cluster(), Authorities, d, ownedtest.Now()))
	if err := Enter(t.Context(), h.Objects, outdated, Authorities, d, ownedtest.Now()); !owned.Stale(err) {
		t.Errorf("error %v", err)
	}
}

func TestDue(t *testing.T) {
	created, now := ownedtest.Now(), ownedtest.Now().Add(time.Hour)
	for name, test := range map[string]struct {
		renewal time.Time
		request *metav1.Time
		due     bool
		times   int
	}{
		"later":               {now.Add(time.Minute), nil, false, 1},
		"by its age":          {now.Add(-time.Minute), nil, true, 1},
		"requested":           {now.Add(time.Minute), &metav1.Time{Time: now.Add(-time.Second)}, true, 2},
		"replaced since then": {now.Add(time.Minute), &metav1.Time{Time: created.Add(-time.Second)}, false, 2},
	} {
		reason, times := Due(created, test.renewal, test.request, now)
		if (reason != "") != test.due || len(times) != test.times {
			t.Errorf("%s: %q, %v", name, reason, times)
		}
	}
}
