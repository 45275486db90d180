package differential

import (
	"path/filepath"
	"testing"
)

// enabled are the admission plugins that only those have who ask for them. Not among them is what refuses everything,
// what needs a webhook, and what has no say besides the others.
const enabled = "AlwaysPullImages,DenyServiceExternalIPs,EventRateLimit,ExtendedResourceToleration,LimitPodHardAntiAffinityTopology," +
	"NamespaceAutoProvision,NamespaceExists,OwnerReferencesPermissionEnforcement,PodNodeSelector,PodTolerationRestriction"

// off are features that are on by default.
const off = "APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false,RemoteRequestHeaderUID=false," +
	"PodTopologyLabelsAdmission=false,ClearingNominatedNodeNameAfterBinding=false,ConstrainedImpersonation=false"

// TestAsked compares what both servers do when they are asked for plugins that are off by default and for features that
// are on not to be.
func TestAsked(t *testing.T) {
	if testing.Short() {
		t.Skip("runs kube-apiserver")
	}
	configuration, err := filepath.Abs("testdata/asked/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := StartPair(t.Context(), t.TempDir(),
		"--enable-admission-plugins="+enabled, "--admission-control-config-file="+configuration, "--feature-gates="+off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/asked")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
}
