package prometheus

import (
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v2"
)

// The labels of the targets that rules and dashboards select.
const (
	apiServerTarget = `{cluster="demo", job="quorate-apiserver", namespace="default", pod="demo-0"}`
	operatorTarget  = `{job="quorate-operator-metrics", pod="quorate-operator-a"}`
)

// scrapeConfig has the fields of Prometheus' scrape configuration that the samples use. Prometheus' own type requires
// the libraries of all its service discoveries.
type scrapeConfig struct {
	JobName             string `yaml:"job_name"`
	Scheme              string
	HonorLabels         bool                    `yaml:"honor_labels"`
	HTTPClientConfig    config.HTTPClientConfig `yaml:",inline"`
	KubernetesSDConfigs []struct {
		Role       string
		Namespaces struct{ Names []string }
		Selectors  []struct{ Role, Label string }
	} `yaml:"kubernetes_sd_configs"`
	RelabelConfigs []*relabel.Config `yaml:"relabel_configs"`
}

// discovered are the labels of the targets that Kubernetes service discovery finds, by role.
var discovered = map[string][]map[string]string{
	"pod": {
		{
			"__meta_kubernetes_namespace": "default", "__meta_kubernetes_pod_name": "demo-0",
			"__meta_kubernetes_pod_label_quorate_dev_cluster": "demo", "__meta_kubernetes_pod_container_port_name": "https",
			"__meta_kubernetes_pod_phase": "Running",
		},
		{"__meta_kubernetes_pod_container_port_name": "peer", "__meta_kubernetes_pod_phase": "Running"},
		{"__meta_kubernetes_pod_container_port_name": "https", "__meta_kubernetes_pod_phase": "Succeeded"},
	},
	"endpointslice": {
		{
			"__meta_kubernetes_service_name": "quorate-operator-metrics", "__meta_kubernetes_endpointslice_port_name": "metrics",
			"__meta_kubernetes_namespace": "quorate-system", "__meta_kubernetes_pod_name": "quorate-operator-a",
		},
		{"__meta_kubernetes_service_name": "other", "__meta_kubernetes_endpointslice_port_name": "metrics"},
	},
}

func TestScrapeConfigs(t *testing.T) {
	text, err := os.ReadFile(root + "config/monitoring/scrape_configs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ScrapeConfigs []scrapeConfig `yaml:"scrape_configs"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range file.ScrapeConfigs {
		if err := c.HTTPClientConfig.Validate(); err != nil {
			t.Errorf("%s: %v", c.JobName, err)
		}
		for _, target := range discovered[c.KubernetesSDConfigs[0].Role] {
			if kept := relabeled(t, target, c.JobName, c.RelabelConfigs); kept != "" {
				got = append(got, kept)
			}
		}
	}
	if want := []string{operatorTarget, apiServerTarget}; strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the targets are %q, want %q", got, want)
	}
}

// TestPodMonitor applies the relabelings of the sample after those that the Prometheus operator generates.
func TestPodMonitor(t *testing.T) {
	text, err := os.ReadFile(root + "config/samples/monitoring.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Kind string
		Spec struct {
			PodMetricsEndpoints []struct {
				Relabelings []struct {
					TargetLabel  string            `yaml:"targetLabel"`
					SourceLabels []model.LabelName `yaml:"sourceLabels"`
					Replacement  string
				}
			} `yaml:"podMetricsEndpoints"`
		}
	}
	documents := strings.Split(string(text), "\n---\n")
	if err := yaml.Unmarshal([]byte(documents[len(documents)-1]), &monitor); err != nil || monitor.Kind != "PodMonitor" {
		t.Fatal(monitor.Kind, err)
	}
	generated := []*relabel.Config{
		rename("__meta_kubernetes_namespace", "namespace"), rename("__meta_kubernetes_pod_name", "pod"),
	}
	for _, relabeling := range monitor.Spec.PodMetricsEndpoints[0].Relabelings {
		c := relabel.DefaultRelabelConfig
		c.SourceLabels, c.TargetLabel = relabeling.SourceLabels, relabeling.TargetLabel
		c.Replacement = cmp.Or(relabeling.Replacement, c.Replacement)
		generated = append(generated, &c)
	}
	if got := relabeled(t, discovered["pod"][0], "default/demo", generated); got != apiServerTarget {
		t.Errorf("the target has the labels %s, want %s", got, apiServerTarget)
	}
}

func rename(from, to string) *relabel.Config {
	c := relabel.DefaultRelabelConfig
	c.SourceLabels, c.TargetLabel = model.LabelNames{model.LabelName(from)}, to
	return &c
}

// relabeled returns the labels of a target, or "" if it is dropped.
func relabeled(t *testing.T, target map[string]string, job string, configs []*relabel.Config) string {
	t.Helper()
	builder := labels.NewBuilder(labels.FromMap(target)).Set("job", job)
	for _, c := range configs {
		if err := c.Validate(model.UTF8Validation); err != nil {
			t.Fatal(err)
		}
	}
	if !relabel.ProcessBuilder(builder, configs...) {
		return ""
	}
	for name := range target {
		builder.Del(name)
	}
	return builder.Labels().String()
}
