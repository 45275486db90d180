package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

const (
	// silenceMargin is how long before and after a change an operator that was killed may have lost the event about it.
	silenceMargin = 10 * time.Second
	// announcePatience is how long the events of the last changes may take.
	announcePatience = 30 * time.Second
)

// announcement is an Event about demo.
type announcement struct {
	reason, action, note string
	member               string // name of the related object
	times                []time.Time
}

// change is a change of demo's status that an Event must announce.
type change struct {
	what   string
	since  time.Time // of the last status without it
	at     time.Time
	wanted func(announcement) bool
}

// witness compares the Events about demo with the changes of its status.
type witness struct {
	previous *v1alpha1.ApiServerClusterStatus
	read     time.Time                  // of previous
	ids      map[string]map[string]bool // all IDs that the members of a name have had
	initial  map[string]string          // IDs at the beginning, by name
	voters   map[string]bool            // names of members that were voters
	changes  []change
	silences []time.Time // at which an operator could lose Events that it had not written
}

// note adds the changes of a status since the last one.
func (w *witness) note(status v1alpha1.ApiServerClusterStatus, now time.Time) {
	if w.previous == nil {
		w.ids, w.initial, w.voters = map[string]map[string]bool{}, map[string]string{}, map[string]bool{}
		for _, m := range status.Members {
			w.initial[m.Name] = m.ID
			w.ids[m.Name] = map[string]bool{m.ID: true}
		}
	} else {
		w.noteMembers(status, now)
		w.noteConditions(status, now)
	}
	for _, m := range status.Members {
		if m.Role == "voter" || m.Role == "leader" {
			w.voters[m.Name] = true
		}
	}
	w.previous, w.read = &status, now
}

// noteMembers notes members with IDs that their names have not had before.
func (w *witness) noteMembers(status v1alpha1.ApiServerClusterStatus, now time.Time) {
	for _, m := range status.Members {
		if m.ID == "" || w.ids[m.Name][m.ID] {
			continue
		}
		if len(w.ids[m.Name]) > 0 {
			w.expect(m.Name+" was replaced", now, of(m.Name, v1alpha1.ReasonMemberRemoved))
		} else {
			w.ids[m.Name] = map[string]bool{}
		}
		w.ids[m.Name][m.ID] = true
		w.expect(m.Name+" joined", now, of(m.Name, v1alpha1.ReasonLearnerAdded))
	}
}

func (w *witness) noteConditions(status v1alpha1.ApiServerClusterStatus, now time.Time) {
	before := map[string]string{}
	for _, condition := range w.previous.Conditions {
		before[condition.Type] = string(condition.Status)
	}
	for _, condition := range status.Conditions {
		if before[condition.Type] == string(condition.Status) || condition.Type == v1alpha1.Deleting {
			continue
		}
		text := fmt.Sprintf("%s is %s: ", condition.Type, condition.Status)
		w.expect(text+condition.Reason, now, func(a announcement) bool {
			return a.action == condition.Type && (a.reason == condition.Reason || strings.HasPrefix(a.note, text))
		})
	}
}

func (w *witness) expect(what string, now time.Time, wanted func(announcement) bool) {
	w.changes = append(w.changes, change{what: what, since: w.read, at: now, wanted: wanted})
}

// of returns whether an Event is about a member and has a reason.
func of(member, reason string) func(announcement) bool {
	return func(a announcement) bool { return a.member == member && a.reason == reason }
}

// missing returns the changes that no Event announces. A change during which an operator could not write Events is left
// out.
func (w *witness) missing(all []announcement) (faults []error) {
	for _, c := range w.changes {
		silenced := slices.ContainsFunc(w.silences, func(at time.Time) bool {
			return at.After(c.since.Add(-silenceMargin)) && at.Before(c.at.Add(silenceMargin))
		})
		if !silenced && !slices.ContainsFunc(all, c.wanted) {
			faults = append(faults, fmt.Errorf("no event announces that %s", c.what))
		}
	}
	return faults
}

// untrue returns the Events that claim what has not happened. The function explains a loss of the quorum at a time.
func (w *witness) untrue(all []announcement, lost []error, explained func(time.Time) bool) (faults []error) {
	for _, a := range all {
		happened := true
		switch a.reason {
		case v1alpha1.ReasonMemberRemoved:
			happened = a.member == "" || w.wasRemoved(a.member)
		case v1alpha1.ReasonLearnerAdded:
			happened = w.hasJoined(a.member)
		case v1alpha1.ReasonLearnerPromoted:
			happened = w.voters[a.member]
		case v1alpha1.ReasonAcknowledgedWritesLost:
			happened = len(lost) > 0
		case v1alpha1.ReasonQuorumLost:
			happened = !slices.ContainsFunc(a.times, func(at time.Time) bool { return !explained(at) })
		}
		if !happened {
			faults = append(faults, fmt.Errorf("the event %s about %s claims what has not happened: %s",
				a.reason, a.member, a.note))
		}
	}
	return faults
}

// wasRemoved reports whether an ID of the member is not in the last status.
func (w *witness) wasRemoved(name string) bool {
	left := len(w.ids[name])
	for _, m := range w.previous.Members {
		if m.Name == name && w.ids[name][m.ID] {
			left--
		}
	}
	return left > 0
}

// hasJoined reports whether a member of the name was seen that was not there at the beginning.
func (w *witness) hasJoined(name string) bool {
	for id := range w.ids[name] {
		if id != w.initial[name] {
			return true
		}
	}
	return false
}

// announcements returns the Events about demo since a time.
func (s *sandbox) announcements(ctx context.Context, since time.Time) (all []announcement, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list := &eventsv1.EventList{}
	if err := s.objects.List(ctx, list, ctrl.InNamespace("default")); err != nil {
		return nil, err
	}
	for _, event := range list.Items {
		if event.Regarding.Kind != "ApiServerCluster" || event.Regarding.Name != "demo" ||
			event.EventTime.Time.Before(since) {
			continue
		}
		a := announcement{
			reason: event.Reason, action: event.Action, note: event.Note, times: []time.Time{event.EventTime.Time},
		}
		if event.Related != nil {
			a.member = event.Related.Name
		}
		if event.Series != nil {
			a.times = append(a.times, event.Series.LastObservedTime.Time)
		}
		all = append(all, a)
	}
	return all, nil
}

// checkEvents compares the Events about demo with what happened. It waits for Events about the last changes.
func (c *trial) checkEvents(ctx context.Context, lost []error) (faults []error) {
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	var all []announcement
	err := eventually(ctx, func() (err error) {
		if all, err = c.announcements(ctx, c.begin); err != nil {
			return err
		}
		return errors.Join(c.claims.witness.missing(all)...)
	})
	if err != nil && all == nil {
		return []error{fmt.Errorf("read the events about demo: %w", err)}
	}
	c.logf("%d events about demo, %d changes of its status", len(all), len(c.claims.witness.changes))
	return append(c.claims.witness.missing(all), c.claims.witness.untrue(all, lost, c.claims.explained)...)
}
