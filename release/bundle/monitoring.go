package main

import (
	"path/filepath"

	"quorate.dev/release/manifest"
)

// monitoring maps the kinds of the Prometheus operator to the names of their files.
var monitoring = map[string]string{"ServiceMonitor": "servicemonitor", "PrometheusRule": "prometheusrule"}

// addMonitoring adds the ServiceMonitor and the PrometheusRule to the bundle, and marks them as optional.
//
// OLM 0.46 has no optional manifests: it ignores the property, and an InstallPlan fails on a cluster that lacks any
// kind of the bundle. The bundle therefore has these objects only with -monitoring.
func (r *release) addMonitoring(files manifest.Directory) error {
	objects, err := manifest.Read(filepath.Join(r.root, "manifests", "monitoring.yaml"))
	if err != nil {
		return err
	}
	var optional []any
	for _, object := range objects {
		kind := monitoring[object.GetKind()]
		if kind == "" {
			continue // the dashboards of Grafana
		}
		object.SetNamespace("") // OLM sets the namespace of the Subscription
		if err := files.Add("manifests/"+object.GetName()+"."+kind+".yaml", object); err != nil {
			return err
		}
		optional = append(optional, map[string]any{
			"group": object.GroupVersionKind().Group, "kind": object.GetKind(), "name": object.GetName(),
		})
	}
	return files.Add("metadata/properties.yaml", map[string]any{
		"properties": []any{property("olm.manifests.optional", map[string]any{"manifests": optional})},
	})
}
