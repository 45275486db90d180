package main

import (
	"errors"
	"fmt"
	"strings"
)

// behindLimit is the largest permitted increase of a fraction of kube-apiserver's CPU time over the recorded fraction.
const behindLimit = 0.15

// remedy says what to do about rows that are behind.
const remedy = "If the machine was busy, measure such a row again with --work NAME. Otherwise compare profiles " +
	"(--profile) of this commit and of the recorded one. If the increase is intended, record it with " +
	"make benchmark-record."

// comparison is the result of comparing a report with a recorded one.
type comparison struct {
	compared []string // names of the rows that were compared
	behind   []string // a line for each of these rows that is behind
	skipped  []string // a line for each row that was measured on both servers and cannot be compared
}

// compare compares the rows that were measured on both servers with the recorded ones. It leaves out the single rows of
// watches: each is a small difference between two large costs, and only their mean is reliable.
func (r Report) compare(recorded Report) (c comparison) {
	for _, w := range append(allWorks(), encryptions()...) {
		if w.watchers > 0 || !r.measuredOnBoth(w) {
			continue
		}
		measured, ok := r.workFraction(w)
		before, known := recorded.workFraction(w)
		switch {
		case !ok:
			c.skipped = append(c.skipped, w.name+": the cost is noise")
		case !recorded.measuredOnBoth(w):
			c.skipped = append(c.skipped, w.name+": not recorded for both servers")
		case !known:
			c.skipped = append(c.skipped, w.name+": the recorded cost is noise")
		default:
			c.compared = append(c.compared, w.name)
			if isBehind(measured, before) {
				c.behind = append(c.behind, r.describeBehind(w, measured, before))
			}
		}
	}
	return c
}

// isBehind reports whether a fraction exceeds the recorded fraction by more than behindLimit.
func isBehind(measured, recorded float64) bool {
	const rounding = 1e-9
	return measured > recorded*(1+behindLimit)*(1+rounding)
}

func (r Report) describeBehind(w work, measured, recorded float64) string {
	peer, _ := r.Peer.measurement(w.name)
	ours, _ := r.Ours.measurement(w.name)
	text := fmt.Sprintf("%s: %.3f of the peer's CPU time (%s, the peer's is %s), recorded is %.3f: %+.0f %%",
		w.name, measured, cost(ours.CPU), cost(peer.CPU), recorded, 100*(measured/recorded-1))
	if fractions := r.workFractions(w); len(fractions) > 1 {
		text += fmt.Sprintf("; in %d rounds %s", len(fractions), r.spread(w))
	}
	return text
}

// measuredOnBoth reports whether a work was measured on kube-apiserver and on our server.
func (r Report) measuredOnBoth(w work) bool {
	_, peerDid := r.Peer.measurement(w.name)
	_, oursDid := r.Ours.measurement(w.name)
	return peerDid && oursDid
}

// recorded returns the results in the file of --behind. It is called before anything is measured: a missing file fails
// immediately rather than after the run, and --record may replace the file.
func (o *options) recorded() (Report, error) {
	if o.behind == "" {
		return Report{}, nil
	}
	return load(o.behind)
}

// checkBehind returns an error if --behind is set and a row is behind, or no row could be compared.
func (o *options) checkBehind(report, recorded Report) error {
	if o.behind == "" {
		return nil
	}
	c := report.compare(recorded)
	progress("rows compared with %s: %d", o.behind, len(c.compared))
	for _, line := range c.skipped {
		progress("not compared: %s", line)
	}
	if len(c.compared) == 0 {
		return errors.New("no row was measured on both servers and is recorded, so nothing was compared")
	}
	if len(c.behind) > 0 {
		return fmt.Errorf("more than %.0f %% behind the recorded fraction: %d of %d compared rows\n%s\n%s",
			100*behindLimit, len(c.behind), len(c.compared), strings.Join(c.behind, "\n"), remedy)
	}
	return nil
}
