package main

// dashboard describes a Grafana dashboard.
type dashboard struct {
	name, title string
	variables   []variable
	rows        []row
}

// variable is a drop-down list of a dashboard with the values of a label.
type variable struct {
	label  string
	values string // selector of series with the label
}

type row struct {
	title  string
	panels []panel
}

type panel struct {
	title, unit string
	kind        string // timeseries by default
	queries     []query
}

// query is a PromQL expression with the template of the names of its series.
type query struct{ expr, legend string }

// Types of panels.
const (
	timeSeries = "timeseries"
	stat       = "stat"
	timeline   = "state-timeline"
)

// Units of panels, by their names in Grafana.
const (
	short    = "short"
	ratio    = "percentunit"
	seconds  = "s"
	byteUnit = "bytes"
	byteRate = "Bps"
	rate     = "reqps"
	events   = "ops"
)

// Sizes of panels in Grafana's grid, which has 24 columns.
const (
	columns     = 24
	panelWidth  = 8
	panelHeight = 8
)

// object is a JSON object.
type object map[string]any

func dashboards() []dashboard {
	return []dashboard{apiServerDashboard(), etcdDashboard(), operatorDashboard()}
}

// grafana returns the dashboard in the JSON model that Grafana 10 and later import.
func (d dashboard) grafana() object {
	return object{
		"uid": d.name, "title": d.title, "tags": []string{"quorate"}, "schemaVersion": 39, "editable": true,
		"refresh": "30s", "time": object{"from": "now-1h", "to": "now"}, "templating": object{"list": d.templating()},
		"panels": d.panels(),
	}
}

func (d dashboard) templating() []object {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.variables {
		list = append(list, object{
			"name": v.label, "label": v.label, "type": "query", "datasource": datasource(), "refresh": 2, "sort": 1,
			"query":      object{"query": "label_values(" + v.values + ", " + v.label + ")", "refId": v.label},
			"includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
		})
	}
	return list
}

func datasource() object { return object{"type": "prometheus", "uid": "${datasource}"} }

func (d dashboard) panels() []object {
	var all []object
	y := 0
	for _, r := range d.rows {
		all = append(all, object{
			"id": len(all) + 1, "type": "row", "title": r.title, "collapsed": false,
			"gridPos": object{"x": 0, "y": y, "w": columns, "h": 1},
		})
		y++
		for i, p := range r.panels {
			position := i * panelWidth
			all = append(all, p.grafana(len(all)+1, position%columns, y+position/columns*panelHeight))
		}
		y += (len(r.panels)*panelWidth + columns - 1) / columns * panelHeight
	}
	return all
}

func (p panel) grafana(id, x, y int) object {
	kind := p.kind
	if kind == "" {
		kind = timeSeries
	}
	targets := make([]object, 0, len(p.queries))
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend, "datasource": datasource(),
		})
	}
	return object{
		"id": id, "type": kind, "title": p.title, "datasource": datasource(), "targets": targets,
		"gridPos":     object{"x": x, "y": y, "w": panelWidth, "h": panelHeight},
		"fieldConfig": object{"defaults": object{"unit": p.unit}, "overrides": []object{}},
	}
}
