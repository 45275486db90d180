package definition_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

	"quorate.dev/apiserver/builtin"
)

// TestStorageVersions checks that a kind is stored in an API version that the minimum compatibility version can read.
// If there is none, the kind is stored in an API version that exists in the emulated version.
func TestStorageVersions(t *testing.T) {
	registry := utilcompatibility.DefaultComponentGlobalsRegistry
	t.Cleanup(func() { register(t, registry, "", "") })
	for _, test := range []struct{ emulated, oldest, kind, want string }{
		{"1.37", "1.36", "Deployment", "v1"},
		{"1.37", "1.36", "IPAddress", "v1"},
		{"1.35", "1.34", "DeviceClass", "v1"},
		{"1.34", "1.33", "DeviceClass", "v1beta2"},
		// No version is as old as 1.31.
		{"1.33", "1.31", "DeviceClass", "v1beta2"},
	} {
		register(t, registry, test.emulated, test.oldest)
		for _, d := range builtin.Definitions(builtin.Options{}) {
			if d.Kind == test.kind && d.StorageVersion.Version != test.want {
				t.Errorf("%+v: stored in %s", test, d.StorageVersion.Version)
			}
		}
	}
}

// register makes a version the effective version of the process; empty means the own version.
func register(t *testing.T, registry compatibility.ComponentGlobalsRegistry, emulated, oldest string) {
	t.Helper()
	effective := utilcompatibility.DefaultBuildEffectiveVersion()
	if emulated != "" {
		effective.SetEmulationVersion(version.MustParse(emulated))
		effective.SetMinCompatibilityVersion(version.MustParse(oldest))
	}
	registry.Reset()
	err := registry.Register(compatibility.DefaultKubeComponent, effective, featuregate.NewVersionedFeatureGate(
		version.MustParse("1.37")))
	if err != nil {
		t.Fatal(err)
	}
}
