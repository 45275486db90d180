package differential

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"quorate.dev/test/upstream"
)

// enabled are the admission plugins that only those have who ask for them. Not among them is what refuses everything,
// what needs a webhook, and what has no say besides the others.
const enabled = "AlwaysPullImages,DenyServiceExternalIPs,EventRateLimit,ExtendedResourceToleration,LimitPodHardAntiAffinityTopology," +
	"NamespaceAutoProvision,NamespaceExists,OwnerReferencesPermissionEnforcement,PodNodeSelector,PodTolerationRestriction"

// off are features that are on by default.
const off = "APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false,RemoteRequestHeaderUID=false," +
	"PodTopologyLabelsAdmission=false,ClearingNominatedNodeNameAfterBinding=false,ConstrainedImpersonation=false," +
	"StrictIPCIDRValidation=false"

// again is the script of TestDifferential that is run with these flags, too: a feature changes its answers.
const again = "services-spelling"

// TestAsked compares what both servers do when they are asked for plugins that are off by default and for features that
// are on not to be.
func TestAsked(t *testing.T) {
	upstream.NeedsProcesses(t)
	configuration, err := filepath.Abs("testdata/asked/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	pair, err := StartPair(t.Context(), directory,
		"--requestheader-client-ca-file="+filepath.Join(directory, "pki", "serving-ca.crt"),
		"--requestheader-username-headers=X-Remote-User",
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
	common, err := LoadScripts("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range common {
		if script.Name == again {
			scripts = append(scripts, script)
		}
	}
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
	t.Run("handshake", func(t *testing.T) { compareHandshakes(t, pair) })
}

// compareHandshakes compares what both servers say in a TLS handshake.
func compareHandshakes(t *testing.T, pair *Pair) {
	genuine, err := pair.Genuine.Handshake()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := pair.Ours.Handshake()
	if err != nil {
		t.Fatal(err)
	}
	if ours != genuine || strings.Count(ours, "certificate of") != 2 {
		t.Errorf("(- genuine, + ours)\n%s", cmp.Diff(genuine, ours))
	}
}
