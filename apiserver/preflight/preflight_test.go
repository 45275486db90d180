package preflight_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/preflight"
)

// parse returns the configuration of flags, each "name=value".
func parse(t *testing.T, flags ...string) *config.Config {
	t.Helper()
	c := config.Default()
	set := c.Flags()
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		if err := set.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// check fails the test unless an error has a text, or is nil if the text is empty.
func check(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v, want %q", err, want)
	}
}

// TestFlags has flags that are valid one by one, but that contradict each other or the served APIs.
func TestFlags(t *testing.T) {
	t.Parallel()
	const (
		election = "feature-gates=CoordinatedLeaderElection=true"
		uidGate  = "feature-gates=RemoteRequestHeaderUID="
		uids     = "requestheader-uid-headers=X-Remote-Uid"
	)
	for _, test := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"defaults", nil, ""},
		{"unknown gate", []string{"feature-gates=Frobnication=true"}, "Frobnication"},
		{"value of a gate", []string{"feature-gates=CoordinatedLeaderElection=maybe"}, "CoordinatedLeaderElection"},

		{"leader election without its API", []string{election},
			"--feature-gates=CoordinatedLeaderElection=true requires --runtime-config=coordination.k8s.io/v1beta1=true"},
		{"leader election with its API", []string{election, "runtime-config=coordination.k8s.io/v1beta1=true"}, ""},
		{"leader election with all beta APIs", []string{election, "runtime-config=api/beta=true"}, ""},
		{"its API without leader election", []string{"runtime-config=coordination.k8s.io/v1beta1=true"}, ""},

		{"storage versions without their API", []string{"feature-gates=StorageVersionAPI=true"},
			"--feature-gates=StorageVersionAPI=true requires --runtime-config=internal.apiserver.k8s.io/v1alpha1=true"},
		{"storage versions with their API", []string{
			"feature-gates=StorageVersionAPI=true", "runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
		}, ""},

		{"a log in JSON without its gate", []string{"logging-format=json", "feature-gates=LoggingBetaOptions=false"},
			"format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"},
		{"a log in JSON", []string{"logging-format=json"}, ""},
		{"gates of two components", []string{"feature-gates=kube:OpenAPIEnums=true,OpenAPIEnums=false"},
			"set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use"},
		{"gates of the component", []string{"feature-gates=kube:OpenAPIEnums=true,kube:ShardedListAndWatch=false"}, ""},
		{"gates of another component", []string{"feature-gates=wardle:X=true"}, "component not registered: wardle"},
		{"a split log", []string{"log-text-split-stream=true", "feature-gates=LoggingAlphaOptions=true"}, ""},
		{"a split log without its gate", []string{"log-text-split-stream=true", "log-json-info-buffer-size=1Ki"},
			"[options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled, " +
				"options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled]"},
		{"UID headers", []string{uids, uidGate + "true"}, ""},
		{"UID headers without their gate", []string{uids, uidGate + "false"},
			`--requestheader-uid-headers requires the "RemoteRequestHeaderUID" feature to be enabled`},
		{"the gate alone is off", []string{uidGate + "false"}, ""},

		{"unknown API", []string{"runtime-config=frobnication.k8s.io/v1=true"}, "frobnication.k8s.io"},
		{"value of an API", []string{"runtime-config=apps/v1=maybe"}, "apps/v1"},

		{"plugins", []string{"enable-admission-plugins=AlwaysPullImages", "disable-admission-plugins=Priority"}, ""},
		{"unknown plugin", []string{"enable-admission-plugins=Frobnication"},
			`enable-admission-plugins plugin "Frobnication" is unknown`},
		{"plugin enabled and disabled", []string{"enable-admission-plugins=Priority", "disable-admission-plugins=Priority"},
			"[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{"plugins in two ways", []string{"admission-control=Priority", "disable-admission-plugins=LimitRanger"},
			"mutually exclusive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			check(t, preflight.Flags(parse(t, test.flags...)), test.want)
		})
	}
}

// TestEmulation reads the emulated version, from which the served APIs follow.
func TestEmulation(t *testing.T) {
	t.Parallel()
	current := preflight.Emulation(parse(t), nil)
	release := current.Version.EmulationVersion()
	if release.Minor() == 0 || current.ForwardCompatible || current.RuntimeConfigForwardCompatible {
		t.Errorf("by default: got %+v", current)
	}
	previous := release.SubtractMinor(1)
	emulated := preflight.Emulation(parse(t, "emulated-version="+previous.String(), "emulation-forward-compatible=true",
		"runtime-config-emulation-forward-compatible=true"), nil)
	if !emulated.Version.EmulationVersion().EqualTo(previous) || !emulated.ForwardCompatible ||
		!emulated.RuntimeConfigForwardCompatible {
		t.Errorf("got %+v, want version %v and both flags", emulated, previous)
	}
}

// These are the files that the flags of TestCheck name. FILE in a flag is the path of the test's file.
const (
	authorizationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	nodeAndRBAC       = authorizationHead + "- {type: RBAC, name: rbac}\n- {type: Node, name: node}\n"
	authentication    = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	keys              = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: [secrets]\n  providers:\n"
	auditPolicy    = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: "
	egressHead     = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	tracingHead    = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	admissionHead  = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	podSecurityFor = admissionHead + "- name: PodSecurity\n  configuration:\n" +
		"    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n" +
		"    defaults: {enforce: "
)

// TestCheck has one valid and one invalid file for each flag that names a file. The error names the part of the server.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, flag, file, want string }{
		{"authorization", "authorization-config=FILE", nodeAndRBAC, ""},
		{"unknown authorizer", "authorization-config=FILE", authorizationHead + "- {type: Magic, name: a}\n",
			"authorization: "},
		{"authentication", "authentication-config=FILE", authentication, ""},
		{"issuer without a URL", "authentication-config=FILE", authentication + "jwt: [{issuer: {}}]\n",
			"authentication: "},
		{"encryption", "encryption-provider-config=FILE", keys + "  - identity: {}\n", ""},
		{"key of the wrong size", "encryption-provider-config=FILE",
			keys + "  - aescbc: {keys: [{name: a, secret: YQ==}]}\n", "encryption: "},
		{"audit policy", "audit-policy-file=FILE", auditPolicy + "[{level: Metadata}]\n", ""},
		{"unknown level", "audit-policy-file=FILE", auditPolicy + "[{level: All}]\n", "audit: "},
		{"egress", "egress-selector-config-file=FILE",
			egressHead + "- {name: cluster, connection: {proxyProtocol: Direct}}\n", ""},
		{"unknown egress", "egress-selector-config-file=FILE",
			egressHead + "- {name: moon, connection: {proxyProtocol: Direct}}\n", "egress: "},
		{"tracing", "tracing-config-file=FILE", tracingHead + "samplingRatePerMillion: 7\n", ""},
		{"negative rate", "tracing-config-file=FILE", tracingHead + "samplingRatePerMillion: -7\n", "tracing: "},
		{"admission", "admission-control-config-file=FILE", podSecurityFor + "baseline}\n", ""},
		{"unknown security level", "admission-control-config-file=FILE", podSecurityFor + "magic}\n", "admission: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file.yaml")
			if err := os.WriteFile(file, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := preflight.Check(parse(t, strings.Replace(test.flag, "FILE", file, 1)))
			check(t, err, test.want)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if _, err := preflight.Check(parse(t, strings.Replace(test.flag, "FILE", file, 1))); err == nil {
				t.Error("a missing file has no error")
			}
		})
	}
}

// TestCheckCreatesNoLog checks flags that name a log of audit events, which only a server creates.
func TestCheckCreatesNoLog(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	policy, log := filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "logs", "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy+"[{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := parse(t, "audit-policy-file="+policy, "audit-log-path="+log)
	if _, err := preflight.Check(c); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
		t.Errorf("the check has created files: %v, %v", entries, err)
	}
	if c.Audit.Log.Path != log {
		t.Errorf("the check has changed the flag to %s", c.Audit.Log.Path)
	}
}

// TestReport has the settings that a reload of their files cannot change.
func TestReport(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	for name, text := range map[string]string{
		"authorization": nodeAndRBAC, "authentication": authentication + "anonymous: {enabled: false}\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		flags     []string
		modes     []string
		anonymous bool
	}{
		{nil, []string{"AlwaysAllow"}, false}, // as in kube-apiserver, anonymous requests need an authorizer
		{[]string{"authorization-mode=RBAC"}, []string{"RBAC"}, true},
		{[]string{"authorization-mode=RBAC,Node", "anonymous-auth=false"}, []string{"Node", "RBAC"}, false},
		{[]string{
			"authorization-config=" + filepath.Join(directory, "authorization"),
			"authentication-config=" + filepath.Join(directory, "authentication"),
		}, []string{"Node", "RBAC"}, false},
	} {
		report, err := preflight.Check(parse(t, test.flags...))
		if err != nil || !slices.Equal(report.Modes, test.modes) || report.Anonymous.Enabled != test.anonymous {
			t.Errorf("%v: got %+v, %v", test.flags, report, err)
		}
	}
}
