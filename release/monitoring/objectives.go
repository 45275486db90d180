package main

import (
	"fmt"
	"strconv"
	"strings"
)

// budget is the error budget: the fraction of requests that may miss an objective within 30 days.
const budget = 0.01

// notSlow selects the requests whose duration does not depend on the client.
const notSlow = `subresource!~"proxy|attach|log|exec|portforward",verb!~"WATCH|WATCHLIST|CONNECT"`

// objective is a service level objective of API servers. The rates of requests and misses are over 5 minutes, by
// cluster.
type objective struct {
	name  string // part of the names of recorded series
	total string // name of the recorded rate of requests
	title string // title of the panel
	alert string
	// misses and requests are PromQL expressions of rates.
	misses   string
	requests string
	summary  string
	says     string // predicate of requests that miss the objective, in the alert's description
}

// rate5m returns an expression for the rate of a counter over 5 minutes, by cluster.
func rate5m(name, selector string) string {
	return fmt.Sprintf("sum by (namespace, cluster) (rate(%s{%s}[5m]))", name,
		strings.Trim(apiServerJob+","+selector, ","))
}

func objectives() []objective {
	requests := rate5m("apiserver_request_total", "")
	measured := rate5m("apiserver_request_sli_duration_seconds_count", notSlow)
	return []objective{
		{
			name: "apiserver_request_errors", total: "namespace_cluster:apiserver_requests:rate5m",
			title: "Requests without error", alert: "QuorateAPIErrorBudgetBurn",
			// A server that has sent no status 5xx has no series with such a code.
			misses:   rate5m("apiserver_request_total", `code=~"5.."`) + " or 0 * " + requests,
			requests: requests,
			summary:  "The API server burns its error budget.", says: "fail",
		},
		{
			name: "apiserver_request_slow", total: "namespace_cluster:apiserver_requests_sli:rate5m",
			title: "Requests within a second", alert: "QuorateAPILatencyBudgetBurn",
			// Prometheus 3 stores the label le="1" of the bucket as 1.0.
			misses:   measured + " - " + rate5m("apiserver_request_sli_duration_seconds_bucket", `le=~"1|1[.]0",`+notSlow),
			requests: measured,
			summary:  "The API server burns its latency budget.", says: "take longer than a second",
		},
	}
}

// burnRates are the conditions under which each objective raises an alert: over both windows, the budget of 30 days
// burns faster than the sustainable rate, by factor. The short window ends the alert soon after the cause ends.
var burnRates = []struct {
	long, short string
	factor      float64
	wait        string
	severity    string
}{
	{"1h", "5m", 14.4, "2m", critical}, // 2% of the budget within an hour
	{"6h", "30m", 6, "15m", critical},  // 5% within 6 hours
	{"1d", "2h", 3, "1h", warning},     // 10% within a day
	{"3d", "6h", 1, "3h", warning},     // 10% within 3 days
}

// windows are the windows of burnRates, each once.
var windows = []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d"}

// objectiveRules returns recording rules and alerts for all objectives. It records rates over 5 minutes, and from them
// the ratios over all windows: a long window then reads one series instead of all series of a histogram.
func objectiveRules() []rule {
	var records, alerts []rule
	for _, o := range objectives() {
		records = append(records, rule{Record: o.rate(), Expr: o.misses}, rule{Record: o.total, Expr: o.requests})
		for _, window := range windows {
			records = append(records, rule{Record: o.ratio(window), Expr: o.ratioExpr(window)})
		}
		for _, burn := range burnRates {
			threshold := strconv.FormatFloat(burn.factor*budget, 'f', 3, 64)
			alerts = append(alerts, alert{
				name: o.alert, severity: burn.severity, wait: burn.wait,
				expr:    fmt.Sprintf("%s > %s and %s > %s", o.ratio(burn.long), threshold, o.ratio(burn.short), threshold),
				labels:  map[string]string{"long": burn.long, "short": burn.short},
				summary: o.summary,
				description: "{{ $value | humanizePercentage }} of the requests to " + clusterName + " " + o.says + ", over " +
					burn.long + ".",
			}.rule())
		}
	}
	return append(records, alerts...)
}

// rate returns the name of the recorded series with the rate of misses.
func (o objective) rate() string { return "namespace_cluster:" + o.name + ":rate5m" }

// ratio returns the name of the recorded series with the ratio of misses over a window.
func (o objective) ratio(window string) string {
	return "namespace_cluster:" + o.name + ":ratio_rate" + window
}

func (o objective) ratioExpr(window string) string {
	misses, requests := o.rate(), o.total
	if window != "5m" {
		misses = fmt.Sprintf("avg_over_time(%s[%s])", misses, window)
		requests = fmt.Sprintf("avg_over_time(%s[%s])", requests, window)
	}
	return misses + " / (" + requests + " > 0)"
}
