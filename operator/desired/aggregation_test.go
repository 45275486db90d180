package desired

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
)

// golden compares objects with a golden file in testdata.
func golden(t *testing.T, file string, objects ...any) {
	t.Helper()
	var got bytes.Buffer
	for i, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			got.WriteString("---\n")
		}
		got.Write(text)
	}
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got:\n%s\nwant (%s, rewrite with -update):\n%s", got.Bytes(), path, want)
	}
}

func ofService() v1alpha1.AggregatedAPIService {
	return v1alpha1.AggregatedAPIService{
		Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 10,
		Service:  &v1alpha1.HostService{Name: "metrics-server", Namespace: "monitoring"},
		CABundle: &v1alpha1.CABundleSource{SecretRef: &corev1.LocalObjectReference{Name: "metrics-ca"}},
	}
}

func TestRegister(t *testing.T) {
	byAddress := v1alpha1.AggregatedAPIService{
		Group: "reports.example.com", Version: "v1", Address: "[2001:db8::7]:8443", InsecureSkipTLSVerify: true,
	}
	for file, entry := range map[string]v1alpha1.AggregatedAPIService{
		"register-service.yaml": ofService(), "register-address.yaml": byAddress,
	} {
		t.Run(file, func(t *testing.T) {
			r, err := Register(demo(nil), &entry, []byte("CA"))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, file, r.Service, r.Slice, r.APIService)
		})
	}
}

func TestValidateAggregation(t *testing.T) {
	for want, edit := range map[string]func(*v1alpha1.AggregatedAPIService){
		"":                                   func(*v1alpha1.AggregatedAPIService) {},
		"exactly one of service and address": func(a *v1alpha1.AggregatedAPIService) { a.Address = "192.0.2.1:443" },
		"v1beta1.metrics.k8s.io twice":       func(a *v1alpha1.AggregatedAPIService) { a.Group = "metrics.k8s.io" },
		"port from 1 to 65535": func(a *v1alpha1.AggregatedAPIService) {
			a.Service, a.Address = nil, "192.0.2.1:0"
		},
		"127.0.0.1 is a loopback, link-local": func(a *v1alpha1.AggregatedAPIService) {
			a.Service, a.Address = nil, "127.0.0.1:443"
		},
		"should be a domain with at least two": func(a *v1alpha1.AggregatedAPIService) {
			a.Service, a.Address = nil, "metrics:443"
		},
		"is used by another entry":             func(a *v1alpha1.AggregatedAPIService) { a.Service.Port = 8443 },
		"needs exactly one of secretRef":       func(a *v1alpha1.AggregatedAPIService) { a.CABundle.SecretRef = nil },
		"insecureSkipTLSVerify are mutually e": func(a *v1alpha1.AggregatedAPIService) { a.InsecureSkipTLSVerify = true },
	} {
		other := ofService()
		other.Group = "custom.metrics.k8s.io"
		edit(&other)
		err := Validate(demo(func(s *v1alpha1.ApiServerClusterSpec) {
			s.Aggregation.APIServices = []v1alpha1.AggregatedAPIService{ofService(), other}
		}), nil)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// TestAggregatorRouting checks that replicas restart only when the first entry is added or the last one is removed.
func TestAggregatorRouting(t *testing.T) {
	none := HashesOf(demo(nil), "quorate:1", Configuration{})
	with := func(entries ...v1alpha1.AggregatedAPIService) *v1alpha1.ApiServerCluster {
		return demo(func(s *v1alpha1.ApiServerClusterSpec) { s.Aggregation.APIServices = entries })
	}
	one, two := HashesOf(with(ofService()), "quorate:1", Configuration{}), HashesOf(with(ofService(), ofService()),
		"quorate:1", Configuration{})
	if one == none || one != two {
		t.Errorf("got hashes %v without, %v with one and %v with two entries", none, one, two)
	}
	pod, err := Pod(with(ofService()), "quorate:1", Replica{Name: "demo-0", Member: true}, "hash")
	if err != nil {
		t.Fatal(err)
	}
	if args := strings.Join(pod.Spec.Containers[0].Args, " "); !strings.Contains(
		args, "--enable-aggregator-routing=true",
	) {
		t.Errorf("got %s, want --enable-aggregator-routing", args)
	}
}
