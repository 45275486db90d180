package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/render"
)

var (
	//go:embed page.css
	css string
	//go:embed page.js
	script string
)

const (
	beforeStyle = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Quorate sandbox</title>
<link rel="icon" href="data:,">
<style>`
	afterStyle = `</style>
</head>
<body>
<header>
<h1>Quorate sandbox</h1>
<p class="controls"><label><input type="checkbox" id="auto" checked> Update every 2 seconds</label>
<span id="state" role="status"></span></p>
<noscript><p>Reload the page to update it.</p></noscript>
</header>
`
	noClusters = `<p class="next">There is no ApiServerCluster. Create one:
<code>kubectl apply -f config/samples/demo.yaml</code></p>
`
)

// document is an HTML document that is being written. It does not use a template, because a program that executes
// templates keeps all exported methods of its types: docs/dependencies.md has the details.
type document struct {
	content bytes.Buffer
	now     time.Time // ages are relative to now
}

// html returns the page.
func (d Data) html() []byte {
	page := &document{now: d.Now}
	page.markup(beforeStyle + css + afterStyle)
	page.format(`<main data-time="%s">`+"\n", d.Now.UnixMilli())
	page.format(`<p class="quiet">%s, read at <time datetime="%s">%s</time></p>`+"\n",
		d.Directory, d.Now.Format(time.RFC3339), d.Now.Format(time.TimeOnly))
	switch {
	case d.Error != "":
		page.format(`<p class="next bad" role="alert">The management API server cannot be read: %s</p>`+"\n", d.Error)
	case len(d.Clusters) == 0:
		page.markup(noClusters)
	}
	for _, c := range d.Clusters {
		page.cluster(c)
	}
	page.markup("</main>\n<script>" + script + "</script>\n</body>\n</html>\n")
	return page.content.Bytes()
}

// markup writes HTML that does not depend on data.
func (d *document) markup(constant string) { d.content.WriteString(constant) }

// format writes HTML with each %s replaced by an argument. The arguments are escaped. The format must be constant, and
// have %s only in text and in quoted values of attributes that are neither URLs, styles nor scripts.
func (d *document) format(format string, arguments ...any) {
	escaped := make([]any, len(arguments))
	for i, argument := range arguments {
		escaped[i] = html.EscapeString(fmt.Sprint(argument))
	}
	fmt.Fprintf(&d.content, format, escaped...)
}

// fact writes a term and its value into a list.
func (d *document) fact(term string, value any) {
	d.format("<div><dt>%s</dt><dd>%s</dd></div>\n", term, value)
}

// ago returns the age of something that happened at t.
func (d *document) ago(t time.Time) string { return render.Age(d.now.Sub(t)) + " ago" }

func (d *document) cluster(c Cluster) {
	id := c.Namespace + "-" + c.Name
	d.format(`<section aria-labelledby="%s">`+"\n", id)
	d.format(`<h2 id="%s">%s/%s <span class="badge %s">%s</span></h2>`+"\n",
		id, c.Namespace, c.Name, strings.ToLower(string(c.Health)), c.Health)
	d.clusterFacts(c)
	d.nextStep(c.Next, len(c.Problems) > 0)
	d.markup("<h3>Members</h3>\n<ul class=\"members\">\n")
	for _, r := range c.Replicas {
		d.member(r)
	}
	d.markup("</ul>\n<h3>Conditions</h3>\n<ul class=\"lines\">\n")
	for _, condition := range c.Conditions {
		d.condition(condition)
	}
	if len(c.Conditions) == 0 {
		d.markup("<li>none yet</li>\n")
	}
	d.markup("</ul>\n<h3>Events</h3>\n<ol class=\"lines\">\n")
	for _, e := range c.Events {
		d.event(e)
	}
	if len(c.Events) == 0 {
		d.markup("<li>none</li>\n")
	}
	d.markup("</ol>\n</section>\n")
}

func (d *document) clusterFacts(c Cluster) {
	d.markup("<dl class=\"facts\">\n")
	d.fact("Ready", fmt.Sprintf("%d of %d", c.Ready, c.Desired))
	switch {
	case c.Etcd == "external":
		d.fact("etcd", c.Etcd)
	case c.Voters == 1:
		d.fact("etcd", "1 voter")
	default:
		d.fact("etcd", fmt.Sprintf("%d voters", c.Voters))
	}
	d.fact("Version", orDash(c.Version))
	d.fact("Age", render.Age(d.now.Sub(c.Created)))
	if len(c.Certificates) > 0 { // sorted by expiration
		first := c.Certificates[0]
		d.fact("First certificate to expire", first.Secret+", in "+render.Age(first.Expires.Sub(d.now)))
	}
	backup := "none"
	if last := c.Backups.Completed; last != nil {
		backup = last.Name + ", " + d.ago(last.Finished) + ", " + render.Bytes(last.Size)
	}
	d.fact("Last backup", backup)
	d.fact("Kubeconfig", c.Kubeconfig)
	d.markup("</dl>\n")
}

func (d *document) nextStep(step overview.Step, problems bool) {
	class := "next"
	if problems {
		class = "next bad"
	}
	d.format(`<p class="%s"><strong>Next:</strong> %s`, class, step.Text)
	if step.Command != "" {
		d.format(" <code>%s</code>", step.Command)
	}
	d.markup("</p>\n")
}

func (d *document) member(r overview.Replica) {
	d.format("<li>\n<h4>%s <span class=\"badge %s\">%s</span></h4>\n<dl class=\"facts\">\n", r.Name, r.Role, r.Role)
	readiness := "not ready"
	if r.Ready {
		readiness = "ready"
	}
	d.fact("State", r.Status+", "+readiness)
	d.fact("Restarts", r.Restarts)
	if u := r.Usage; u != nil {
		revision := fmt.Sprint(u.Revision)
		if u.Lag != 0 {
			revision += fmt.Sprintf(" (%d behind)", u.Lag)
		}
		d.fact("Revision", revision)
		d.fact("Requests/s", rate(u.Requests))
		d.fact("Watches", u.Watches)
		d.fact("CPU", render.CPU(u.CPU))
		d.fact("Memory", render.Bytes(u.Memory))
	}
	d.fact("Database", render.Bytes(r.DBSize))
	d.markup("</dl>\n</li>\n")
}

func (d *document) condition(c metav1.Condition) {
	class, attention := "good", ""
	if !overview.Expected(c) {
		class, attention = "attention", " (needs attention)"
	}
	d.format("<li class=\"%s\"><strong>%s</strong> is %s, %s%s:\n%s</li>\n", class, c.Type, c.Status, c.Reason,
		attention, c.Message)
}

func (d *document) event(e overview.Event) {
	item, warning, times := "<li>", "", ""
	if e.Warning {
		item, warning = `<li class="attention">`, " (warning)"
	}
	if e.Count > 1 {
		times = fmt.Sprintf(" (%d times)", e.Count)
	}
	d.markup(item)
	d.format("<time datetime=\"%s\">%s</time>\n", e.Time.Format(time.RFC3339), d.ago(e.Time))
	d.format("<strong>%s</strong>%s %s: %s%s</li>\n", e.Reason, warning, e.Object, e.Message, times)
}

func rate(r *float64) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *r)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
