package config

import (
	"strings"
	"testing"
)

// test/compatibility compares which values are accepted with kube-apiserver; the texts are those of its source.
func TestAuditValidation(t *testing.T) {
	const log, webhook = "--audit-log-path=-", "--audit-webhook-config-file=/kubeconfig"
	for _, test := range []struct{ arguments, want string }{
		{"--audit-log-mode=x --audit-webhook-mode=x", ""}, // unused backends
		{log + " --audit-log-mode=x", `invalid audit log mode x, allowed modes are "batch,blocking,blocking-strict"`},
		{log + " --audit-log-format=x", `invalid audit log format x, allowed formats are "legacy,json"`},
		{log + " --audit-log-batch-buffer-size=0", ""},
		{
			log + " --audit-log-mode=batch --audit-log-batch-buffer-size=0",
			"invalid audit batch log buffer size 0, must be a positive number",
		},
		{
			webhook + " --audit-webhook-batch-max-size=-1",
			"invalid audit batch webhook max batch size -1, must be a positive number",
		},
		{
			webhook + " --audit-webhook-batch-throttle-qps=0",
			"invalid audit batch webhook throttle QPS 0, must be a positive number",
		},
		{
			webhook + " --audit-webhook-batch-throttle-burst=0",
			"invalid audit batch webhook throttle burst 0, must be a positive number",
		},
		{webhook + " --audit-webhook-batch-throttle-enable=false --audit-webhook-batch-throttle-burst=0", ""},
		{
			log + " --audit-log-truncate-max-event-size=0",
			"invalid audit truncate log max event size 0, must be a positive number",
		},
		{
			webhook + " --audit-webhook-truncate-max-batch-size=5",
			"invalid audit truncate webhook max batch size 5, must be greater than max event size (102400)",
		},
		{
			log + " --audit-log-version=audit.k8s.io/v1beta1", `invalid group version, allowed versions are ["audit.k8s.io/v1"]`,
		},
		{log + " --audit-log-version=a/b/c", "unexpected GroupVersion string: a/b/c"},
		{log + " --audit-log-maxage=-1", "--audit-log-maxage -1 can't be a negative number"},
		{log + " --audit-log-maxbackup=-2", "--audit-log-maxbackup -2 can't be a negative number"},
		{log + " --audit-log-maxsize=-3", "--audit-log-maxsize -3 can't be a negative number"},
	} {
		err := parse(t, append([]string{"--etcd-servers=http://x:1"}, strings.Fields(test.arguments)...)...).Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.arguments, err)
		case test.want != "" && (err == nil || err.Error() != test.want):
			t.Errorf("%s\ngot  %v\nwant %s", test.arguments, err, test.want)
		}
	}
}

func TestAuditEnabled(t *testing.T) {
	for arguments, want := range map[string]bool{
		"":                       false,
		"--audit-policy-file=/p": false,
		"--audit-log-path=-":     false,
		"--audit-policy-file=/p --audit-log-path=-":            true,
		"--audit-policy-file=/p --audit-webhook-config-file=k": true,
	} {
		if got := parse(t, strings.Fields(arguments)...).Audit.Enabled(); got != want {
			t.Errorf("%q: got %t", arguments, got)
		}
	}
}
