// Package render prints overviews of clusters as text.
package render

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
)

// none is printed for an unknown value.
const none = "-"

// columnGap is the number of spaces between columns.
const columnGap = 2

// Table prints rows in columns. The first row is the heading.
func Table(out io.Writer, rows [][]string) error {
	return terminal.Table(out, rows, columnGap)
}

// Status prints the overview of a cluster on one screen.
func Status(out io.Writer, o *overview.Overview, now time.Time) error {
	fmt.Fprintln(out, terminal.Line(heading(o, now)))
	if o.Endpoint != "" {
		fmt.Fprintln(out, terminal.Line(o.Endpoint))
	}
	fmt.Fprintln(out)
	if len(o.Replicas) > 0 {
		if err := Table(out, replicaRows(o)); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	if err := Table(out, facts(o, now)); err != nil {
		return err
	}
	for _, c := range o.Problems {
		fmt.Fprintf(out, "\n%s is %s: %s\n  %s\n", c.Type, c.Status, terminal.Line(c.Reason), terminal.Line(c.Message))
	}
	for _, note := range o.Notes {
		fmt.Fprintf(out, "\nNote: %s\n", terminal.Line(note))
	}
	return Step(out, o.Next)
}

// Step prints the suggested next step.
func Step(out io.Writer, step overview.Step) error {
	fmt.Fprintf(out, "\nNext: %s\n", terminal.Line(step.Text))
	if step.Command != "" {
		fmt.Fprintf(out, "  %s\n", terminal.Line(step.Command))
	}
	return nil
}

func heading(o *overview.Overview, now time.Time) string {
	parts := []string{
		fmt.Sprintf("%s/%s  %s", o.Namespace, o.Name, o.Health), fmt.Sprintf("%d/%d ready", o.Ready, o.Desired),
	}
	switch {
	case o.Etcd == "external":
		parts = append(parts, "external etcd")
	case o.Voters > 0:
		parts = append(parts, fmt.Sprintf("%d voters", o.Voters))
	}
	if o.Version != "" {
		parts = append(parts, o.Version)
	}
	return strings.Join(append(parts, Age(now.Sub(o.Created))+" old"), ", ")
}

func replicaRows(o *overview.Overview) [][]string {
	rows := [][]string{{"MEMBER", "ROLE", "READY", "STATUS", "RESTARTS", "REVISION", "LAG", "DB SIZE", "NODE"}}
	for _, r := range o.Replicas {
		revision, lag := none, none
		if r.Usage != nil {
			revision, lag = fmt.Sprint(r.Usage.Revision), fmt.Sprint(r.Usage.Lag)
		}
		rows = append(rows, []string{
			r.Name, r.Role, yes(r.Ready), orNone(r.Status), fmt.Sprint(r.Restarts), revision, lag,
			Bytes(r.DBSize), orNone(r.Node),
		})
	}
	return rows
}

// facts returns the rows below the table of members.
func facts(o *overview.Overview, now time.Time) [][]string {
	rows := [][]string{{"Certificates:", certificates(o.Certificates, now)}}
	if text := rotations(o.Rotations, now); text != "" {
		rows = append(rows, []string{"Rotations:", text})
	}
	if o.Etcd == "embedded" {
		rows = append(rows, []string{"Backups:", backups(o.Backups, now)})
		for _, s := range o.Backups.Schedules {
			rows = append(rows, []string{"", schedule(s, now)})
		}
	}
	if text := deletion(o.Deletion, now); text != "" {
		rows = append(rows, []string{"Deletion:", text})
	}
	fine := len(o.Conditions) - len(o.Problems)
	rows = append(rows, []string{"Conditions:", fmt.Sprintf("%d of %d as expected", fine, len(o.Conditions))})
	return append(rows, alertRows(o.Alerts)...)
}

// alertRows returns a row for each alert, or one row if there is none.
func alertRows(alerts []overview.Alert) [][]string {
	if len(alerts) == 0 {
		return [][]string{{"Alerts:", "none"}}
	}
	rows := make([][]string, 0, len(alerts))
	for i, a := range alerts {
		label := ""
		if i == 0 {
			label = "Alerts:"
		}
		text := a.Severity + " " + a.Name
		if a.Member != "" { // other alerts have the messages of conditions, which are printed below
			text += ": " + a.Message
		}
		rows = append(rows, []string{label, text})
	}
	return rows
}

// deletion describes the effects of a deletion of the cluster, or returns "" if they are the default.
func deletion(d overview.Deletion, now time.Time) string {
	var parts []string
	if d.Requested != nil {
		parts = append(parts, "requested "+Age(now.Sub(*d.Requested))+" ago")
	}
	if d.Protected {
		parts = append(parts, "protected")
	}
	if d.FinalBackup {
		parts = append(parts, "a final backup is taken first")
	}
	if d.Retain {
		parts = append(parts, "volumes and keys stay")
	}
	return strings.Join(parts, ", ")
}

func certificates(all []overview.Certificate, now time.Time) string {
	var parts []string
	for _, authority := range []bool{false, true} {
		i := slices.IndexFunc(all, func(c overview.Certificate) bool { return c.Authority == authority })
		if i < 0 {
			continue
		}
		kind := "first to expire"
		if authority {
			kind = "first authority"
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", kind, until(all[i].Expires, now), all[i].Secret))
	}
	return orNone(strings.Join(parts, ", "))
}

func rotations(r *v1alpha1.Rotations, now time.Time) string {
	if r == nil {
		return ""
	}
	var parts []string
	for _, part := range []struct {
		name     string
		rotation *v1alpha1.Rotation
	}{
		{"authorities", r.Authorities}, {"service-account key", r.ServiceAccountKeys}, {"encryption key", r.EncryptionKeys},
	} {
		if part.rotation != nil {
			parts = append(parts, fmt.Sprintf("%s in stage %s for %s", part.name, part.rotation.Stage,
				Age(now.Sub(part.rotation.StageSince.Time))))
		}
	}
	return strings.Join(parts, ", ")
}

func backups(b overview.Backups, now time.Time) string {
	var parts []string
	if done := b.Completed; done != nil {
		parts = append(parts,
			fmt.Sprintf("%s completed %s ago, %s", done.Name, Age(now.Sub(done.Finished)), Bytes(done.Size)))
	}
	if failed := b.Failed; failed != nil {
		parts = append(parts, fmt.Sprintf("%s failed %s ago", failed.Name, Age(now.Sub(failed.Finished))))
	}
	for _, name := range b.Running {
		parts = append(parts, name+" is running")
	}
	for _, waiting := range b.Waiting {
		parts = append(parts, waiting.Name+" is waiting: "+waiting.Message)
	}
	return cmp.Or(strings.Join(parts, "; "), "none")
}

func schedule(s overview.Schedule, now time.Time) string {
	switch {
	case s.Suspended:
		return "schedule " + s.Name + " is suspended"
	case s.Next == nil:
		return "schedule " + s.Name
	}
	return fmt.Sprintf("schedule %s, next %s", s.Name, until(*s.Next, now))
}

// List prints one line for each cluster.
func List(out io.Writer, all []*overview.Overview, now time.Time) error {
	rows := [][]string{{"NAMESPACE", "NAME", "HEALTH", "READY", "VOTERS", "VERSION", "LAST BACKUP", "AGE", "NEXT"}}
	for _, o := range all {
		backup := none
		if o.Backups.Completed != nil {
			backup = Age(now.Sub(o.Backups.Completed.Finished))
		}
		rows = append(rows, []string{
			o.Namespace, o.Name, string(o.Health), fmt.Sprintf("%d/%d", o.Ready, o.Desired),
			fmt.Sprint(o.Voters), orNone(o.Version), backup, Age(now.Sub(o.Created)), o.Next.Text,
		})
	}
	return Table(out, rows)
}

// Top prints the resource usage of each API server.
func Top(out io.Writer, o *overview.Overview) error {
	rows := [][]string{{
		"REPLICA", "ROLE", "REQUESTS/S", "ERRORS/S", "IN FLIGHT", "WATCHES", "CPU", "MEMORY", "DB IN USE",
		"DB SIZE", "DB QUOTA",
	}}
	for _, r := range o.Replicas {
		row := []string{r.Name, r.Role}
		if u := r.Usage; u == nil {
			row = append(row, none, none, none, none, none, none, none, none, none)
		} else {
			row = append(row, rate(u.Requests), rate(u.Errors), fmt.Sprint(u.InFlight), fmt.Sprint(u.Watches),
				CPU(u.CPU), Bytes(u.Memory), Bytes(u.DBInUse), Bytes(r.DBSize), Bytes(u.DBQuota))
		}
		rows = append(rows, row)
	}
	return Table(out, rows)
}

// Bytes returns a size with a binary unit, or - for 0.
func Bytes(n int64) string {
	if n == 0 {
		return none
	}
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if n >= unit.size {
			tenths := math.Round(10 * float64(n) / float64(unit.size))
			return strconv.FormatFloat(tenths/10, 'f', -1, 64) + unit.name
		}
	}
	return fmt.Sprint(n)
}

// CPU returns a number of cores in the format of kubectl top.
func CPU(cores *float64) string {
	if cores == nil {
		return none
	}
	return resource.NewMilliQuantity(int64(*cores*1000), resource.DecimalSI).String()
}

func rate(r *float64) string {
	if r == nil {
		return none
	}
	return fmt.Sprintf("%.1f", *r)
}

// Age returns a duration in the format in which kubectl prints ages.
func Age(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

func until(t, now time.Time) string {
	if t.Before(now) {
		return Age(now.Sub(t)) + " ago"
	}
	return "in " + Age(t.Sub(now))
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orNone(text string) string { return cmp.Or(text, none) }
