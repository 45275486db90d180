package differential

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"quorate.dev/test/upstream"
)

// enabled are the admission plugins that are disabled by default, except for those that refuse everything, need a
// webhook, or have no effect together with the others.
const enabled = "AlwaysPullImages,DenyServiceExternalIPs,EventRateLimit,ExtendedResourceToleration,LimitPodHardAntiAffinityTopology," +
	"NamespaceAutoProvision,NamespaceExists,OwnerReferencesPermissionEnforcement,PodNodeSelector,PodTolerationRestriction"

// off are the features that are enabled by default and that TestNonDefaultOptions disables.
const off = "APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false,RemoteRequestHeaderUID=false," +
	"PodTopologyLabelsAdmission=false,ClearingNominatedNodeNameAfterBinding=false,ConstrainedImpersonation=false," +
	"StrictIPCIDRValidation=false,WatchList=false,APIResponseCompression=false,StorageVersionHash=false," +
	"ComponentStatusz=false,ComponentFlagz=false,UnauthenticatedHTTP2DOSMitigation=false," +
	"TokenRequestServiceAccountUIDValidation=false"

// again is a script of TestDifferential that also runs with these flags, because a feature changes its responses.
const again = "services-spelling"

// TestNonDefaultOptions compares both servers with admission plugins that are disabled by default, with shards of lists
// and watches, and without features that are enabled by default.
func TestNonDefaultOptions(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	configuration, err := filepath.Abs("testdata/asked/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	pair, err := StartPair(t.Context(), directory,
		"--requestheader-client-ca-file="+filepath.Join(directory, "pki", "serving-ca.crt"),
		"--requestheader-username-headers=X-Remote-User",
		"--enable-admission-plugins="+enabled, "--admission-control-config-file="+configuration,
		"--feature-gates="+off+",ShardedListAndWatch=true",
		"--enable-garbage-collector=false", "--enable-logs-handler", "--lease-reuse-duration-seconds=7",
		"--tls-curve-preferences=23,24")
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

// compareHandshakes compares the TLS handshakes of both servers.
func compareHandshakes(t *testing.T, pair *Pair) {
	theirs, err := pair.Upstream.Handshake()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := pair.Ours.Handshake()
	if err != nil {
		t.Fatal(err)
	}
	if ours != theirs || strings.Count(ours, "certificate of") != 2 {
		t.Errorf("(- kube-apiserver, + ours)\n%s", cmp.Diff(theirs, ours))
	}
}
