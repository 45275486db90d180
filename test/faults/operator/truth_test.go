package operator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/history/check"
)

// outageGrace is how long after a disturbance of members the loss of the quorum may be reported, or still be reported.
const outageGrace = time.Minute

// claims has what the operator has said, and what was the case.
type claims struct {
	mu           sync.Mutex
	said         map[string]int // number of times that each condition, status and reason was read
	degraded     bool           // Degraded was not False at some time
	disturbances []*disturbance
	faults       []error
	witness      witness
}

// disturbance is a time in which members could not serve.
type disturbance struct {
	what       string
	begin, end time.Time // end is zero as long as it lasts
	// majority means that the members cannot have had a quorum.
	majority bool
	// silent means that the operator could not report it.
	silent bool
	// reported means that EtcdQuorum was not True at some time.
	reported bool
}

// watch reads the conditions of demo until ctx ends.
func (c *claims) watch(ctx context.Context, s *sandbox) {
	for check.Pause(ctx, pollInterval) {
		if cluster, err := s.cluster(ctx, "demo"); err == nil {
			c.note(cluster, time.Now())
		}
	}
}

func (c *claims) note(cluster *v1alpha1.ApiServerCluster, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.witness.note(cluster.Status, now)
	for _, condition := range cluster.Status.Conditions {
		c.said[fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Reason)]++
	}
	if !meta.IsStatusConditionFalse(cluster.Status.Conditions, v1alpha1.Degraded) {
		c.degraded = true
	}
	quorum := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.EtcdQuorum)
	if quorum == nil || quorum.Status == "True" {
		return
	}
	for _, d := range c.disturbances {
		d.reported = d.reported || d.explains(now)
	}
	if quorum.Reason == v1alpha1.ReasonQuorumLost && !c.explains(now) {
		c.faults = append(c.faults,
			fmt.Errorf("the operator says that the quorum is lost, and no member was disturbed: %s", quorum.Message))
	}
}

// explains reports whether the quorum may be lost at a time because of the disturbance.
func (d *disturbance) explains(now time.Time) bool {
	return !now.Before(d.begin.Add(-time.Second)) && (d.end.IsZero() || now.Sub(d.end) < outageGrace)
}

// explains reports whether a disturbance explains a loss of the quorum at a time. The lock is held.
func (c *claims) explains(now time.Time) bool {
	return slices.ContainsFunc(c.disturbances, func(d *disturbance) bool { return d.explains(now) })
}

func (c *claims) explained(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.explains(now)
}

// disturb notes that members cannot serve until the returned function is called.
func (c *claims) disturb(what string, majority, silent bool) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &disturbance{what: what, begin: time.Now(), majority: majority, silent: silent}
	c.disturbances = append(c.disturbances, d)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		d.end = time.Now()
	}
}

// silence notes that the operator cannot report the present disturbances, and may lose events.
func (c *claims) silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.witness.silences = append(c.witness.silences, time.Now())
	for _, d := range c.disturbances {
		if d.end.IsZero() {
			d.silent = true
		}
	}
}

// check compares the conditions that the operator has published with the faults that were injected and with the losses
// that clients have found. It returns an error for each fault or loss that no condition has reported.
func (c *claims) check(lost []error) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	faults := c.faults
	for _, d := range c.disturbances {
		if d.majority && !d.silent && !d.reported && d.end.Sub(d.begin) >= outageLength {
			faults = append(faults, fmt.Errorf("%s for %v, and EtcdQuorum was True all the time", d.what, d.end.Sub(d.begin)))
		}
	}
	if len(lost) > 0 && !c.degraded {
		faults = append(faults, fmt.Errorf("Degraded was False all the time, and clients have found: %w", lost[0]))
	}
	return faults
}
