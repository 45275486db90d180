package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
)

// execute runs a command without a terminal, and returns its output, including errors.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(),
		streams{in: strings.NewReader(""), out: terminal.NewWriter(&out), err: terminal.NewWriter(&out)}, args)
	return out.String(), err
}

// TestArgumentErrors checks that each error is detected before a connection is made, and describes what to change.
func TestArgumentErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	for _, test := range []struct{ args, want string }{
		{"status -o table", "must be json or yaml"},
		{"status a b", "accepts at most 1 arg"},
		{"restore", "accepts 1 arg"},
		{"nonsense", "unknown command"},
		{"status", "name one with --kubeconfig"},
		{"logs --operator --replicas", "none of the others can be"},
		{"recover --member=a --from=b", "none of the others can be"},
		{"rotate nonsense", "unknown command"},
		{"rotate authorities --overlap=soon", "--overlap"},
		{"wait --for=nonsense", "must be one of available"},
		{"backup --s3-bucket=b --s3-secret=s", "need --s3-endpoint"},
		{"backup --claim=a --s3-bucket=b", "not both"},
		{"backup --claim-path=a", "needs --claim"},
		{"backup --timeout=0", "between 10s and 24h0m0s"},
		{"backup --claim=a -o table", "must be json or yaml"},
		{"restore copy", "set --from"},
		{"restore copy --claim=a --backup-path=b", "nothing shows whether the backup was replaced"},
		{"restore copy --from=a --manifest-sha256=b", "need --backup-path"},
		{"kubeconfig --use", "needs --write"},
	} {
		_, err := execute(t, strings.Fields(test.args)...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.args, err, test.want)
		}
		if coded := (*codeError)(nil); errors.As(err, &coded) {
			t.Errorf("%s: exit code %d, want %d", test.args, coded.code, ExitError)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	for args, want := range map[string]string{
		"__complete wa": "wait", "__complete wait --for se": "settled", "__complete status -o y": "yaml",
		"__complete rotate enc": "encryption-keys", "__complete status ": ":4", "completion bash": "__start_kubectl-quorate",
	} {
		out, err := execute(t, strings.Split(args, " ")...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %q", args, err, out)
		}
	}
}

func TestTimeoutHasAnExitCode(t *testing.T) {
	err := fmt.Errorf("list: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		err  error
		want int
	}{{negative("no"), ExitNegative}, {&codeError{err, ExitTimeout}, ExitTimeout}} {
		var coded interface{ ExitCode() int }
		if !errors.As(fmt.Errorf("wrapped: %w", test.err), &coded) || coded.ExitCode() != test.want {
			t.Errorf("%v: exit code %v, want %d", test.err, coded, test.want)
		}
	}
}

// TestNoLimitOfRequests checks that the client does not limit its requests: the error of its limiter for a request that
// would exceed a deadline is no timeout.
func TestNoLimitOfRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	const content = `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: x, context: {cluster: c}}], current-context: x}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := &tool{rules: &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}}
	if err := tool.connect(); err != nil {
		t.Fatal(err)
	}
	if tool.config.QPS >= 0 {
		t.Errorf("the client sends at most %v requests per second", tool.config.QPS)
	}
}

func TestBackupDestination(t *testing.T) {
	volume := v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "last"}}
	keys := &v1alpha1.BackupEncryption{}
	old := v1alpha1.ApiServerBackup{}
	old.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	last := v1alpha1.ApiServerBackup{Spec: v1alpha1.ApiServerBackupSpec{Destination: volume, Encryption: keys}}
	last.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))
	schedule := v1alpha1.ApiServerBackupSchedule{}
	schedule.Spec.Template.Destination.Volume = &v1alpha1.VolumeDestination{ClaimName: "scheduled"}
	backups := []v1alpha1.ApiServerBackup{last, old}
	for _, test := range []struct {
		name      string
		options   backupOptions
		in        overview.Input
		claim     string
		encrypted bool
		err       string
	}{
		{
			"a flag", backupOptions{destination: destination{claim: "given"}}, overview.Input{Backups: backups}, "given",
			false, "",
		},
		{"the newest backup", backupOptions{}, overview.Input{Backups: backups}, "last", true, ""},
		{
			"a schedule", backupOptions{},
			overview.Input{Backups: backups, Schedules: []v1alpha1.ApiServerBackupSchedule{schedule}}, "scheduled", false, "",
		},
		{
			"encryption", backupOptions{destination: destination{claim: "given"}, recipients: "keys"}, overview.Input{},
			"given", true, "",
		},
		{"nothing", backupOptions{}, overview.Input{}, "", false, "set --claim"},
		{"both", backupOptions{destination: destination{claim: "a", endpoint: "b"}}, overview.Input{}, "", false, "not both"},
		{
			"half of S3", backupOptions{destination: destination{endpoint: "b", bucket: "c"}}, overview.Input{}, "",
			false, "--s3-secret",
		},
	} {
		test.in.Cluster, test.options.timeout = &v1alpha1.ApiServerCluster{}, time.Hour
		spec, err := test.options.spec(test.in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %q", test.name, err, test.err)
			}
			continue
		}
		if err != nil || spec.Destination.Volume.ClaimName != test.claim || (spec.Encryption != nil) != test.encrypted {
			t.Errorf("%s: got %+v, %v", test.name, spec, err)
		}
	}
}

// TestBackupIsPrintedWithoutWaiting checks that the command prints the name of the backup if it does not wait.
func TestBackupIsPrintedWithoutWaiting(t *testing.T) {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	var out bytes.Buffer
	tool := &tool{
		streams: streams{out: terminal.NewWriter(&out), err: terminal.NewWriter(&bytes.Buffer{})}, now: time.Now,
		client: fake.NewClientBuilder().WithScheme(overview.Scheme()).WithObjects(cluster).Build(),
	}
	options := backupOptions{
		name: "monday", format: "json", timeout: time.Hour, destination: destination{claim: "backups"},
	}
	if err := tool.backup(t.Context(), client.ObjectKeyFromObject(cluster), options); err != nil {
		t.Fatal(err)
	}
	var printed v1alpha1.ApiServerBackup
	if err := json.Unmarshal(out.Bytes(), &printed); err != nil || printed.Name != "monday" ||
		printed.Spec.ClusterName != "demo" || printed.Kind != "ApiServerBackup" ||
		printed.APIVersion != v1alpha1.GroupVersion.String() {
		t.Errorf("got %v, %q", err, out.String())
	}
}

// TestPrintedObjectsHaveNoManagedFields checks that printed objects have no managed fields, like the output of kubectl.
func TestPrintedObjectsHaveNoManagedFields(t *testing.T) {
	var out bytes.Buffer
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{
		Name: "demo", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl-quorate"}},
	}}
	if err := (&tool{streams: streams{out: terminal.NewWriter(&out)}}).print("yaml", cluster); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "kind: ApiServerCluster") || strings.Contains(out.String(), "managedFields") {
		t.Errorf("got %s", out.String())
	}
}

func TestRestoreSource(t *testing.T) {
	for _, test := range []struct {
		options restoreOptions
		err     string
	}{
		{restoreOptions{backup: "monday", identities: "keys", tokenKey: "old", replaceKey: true}, ""},
		{restoreOptions{destination: destination{claim: "backups"}, backupPath: "default/demo/monday", key: "ed25519:"}, ""},
		{restoreOptions{destination: destination{claim: "backups"}, backupPath: "default/demo/monday", unverified: true}, ""},
		{restoreOptions{}, "set --from"},
		{restoreOptions{destination: destination{claim: "backups"}}, "--backup-path"},
		{restoreOptions{backup: "monday", backupPath: "x"}, "not both"},
	} {
		restore, err := test.options.source()
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: error %v, want %q", test.options, err, test.err)
			}
			continue
		}
		if err != nil || (restore.From.Location != nil) != (test.options.backup == "") ||
			(restore.Encryption != nil) != (test.options.identities != "") {
			t.Errorf("%+v: got %+v, %v", test.options, restore, err)
		}
	}
}

func TestMentions(t *testing.T) {
	key := client.ObjectKey{Namespace: "default", Name: "demo"}
	for line, want := range map[string]bool{
		`level=INFO msg="Condition changed" namespace=default name=demo reconcileID=1`:           true,
		`level=INFO msg="Condition changed" reconcileID=1 namespace=default name=demo`:           true,
		`{"msg":"Condition changed","namespace":"default","name":"demo"}`:                        true,
		`level=INFO msg="Condition changed" namespace=default name=demo-2 reconcileID=1`:         false,
		`level=INFO msg="Condition changed" namespace=team-a name=demo reconcileID=1`:            false,
		`level=INFO msg="Starting the operator" image=quorate`:                                   false,
		`{"msg":"Condition changed","namespace":"default","name":"other","cluster":"demo"}`:      false,
		`level=INFO msg="x" ApiServerCluster.name=demo ApiServerCluster.namespace=default a=b c`: false,
	} {
		if got := mentions(line, key); got != want {
			t.Errorf("%s: got %t", line, got)
		}
	}
}

func TestLastLines(t *testing.T) {
	log := strings.Repeat("x", 1<<20) + "\nkeep 1\ndrop\nkeep 2\nkeep 3"
	lines, err := lastLines(strings.NewReader(log), func(line string) bool { return strings.HasPrefix(line, "keep") }, 2)
	if err != nil || strings.Join(lines, ",") != "keep 2,keep 3" {
		t.Errorf("got %q, %v", lines, err)
	}
}

const adminKubeconfig = `
apiVersion: v1
kind: Config
current-context: demo
clusters: [{name: demo, cluster: {server: "https://demo.default.svc:6443"}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: demo, context: {cluster: demo, user: admin}}]
`

// TestKubeconfigIsMerged checks that other entries and the current context of the file are kept.
func TestKubeconfigIsMerged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	mine := strings.NewReplacer("demo", "mine", "secret", "other").Replace(adminKubeconfig)
	if err := os.WriteFile(file, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := renamed([]byte(adminKubeconfig), "default-demo", "https://127.0.0.1:9999")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tool := &tool{
		streams: streams{out: terminal.NewWriter(&out), err: terminal.NewWriter(&out)},
		rules:   &clientcmd.ClientConfigLoadingRules{ExplicitPath: file},
	}
	for _, use := range []bool{false, true} {
		if err := tool.writeKubeconfig(kubeconfig, kubeconfigOptions{name: "default-demo", use: use}); err != nil {
			t.Fatal(err)
		}
		got, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cluster := got.Clusters["default-demo"]
		if cluster.Server != "https://127.0.0.1:9999" || cluster.TLSServerName != "demo.default.svc" ||
			got.AuthInfos["default-demo"].Token != "secret" || got.AuthInfos["admin"].Token != "other" {
			t.Errorf("got %+v", got)
		}
		if (got.CurrentContext == "default-demo") != use {
			t.Errorf("the current context is %s", got.CurrentContext)
		}
	}
	if _, err := renamed([]byte("apiVersion: v1\nkind: Config"), "a", ""); err == nil {
		t.Error("a kubeconfig without a context was accepted")
	}
}

func TestGoals(t *testing.T) {
	cluster := func(kind string, status metav1.ConditionStatus) *v1alpha1.ApiServerCluster {
		c := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
		c.Spec.Replicas = ptr.To[int32](1)
		c.Status = v1alpha1.ApiServerClusterStatus{
			ObservedGeneration: 1, ReadyReplicas: 1, Image: "old", Conditions: []metav1.Condition{
				{Type: v1alpha1.Available, Status: "True"}, {Type: v1alpha1.Progressing, Status: "False"},
				{Type: kind, Status: status, ObservedGeneration: 1},
			},
		}
		return c
	}
	upgrading := cluster(v1alpha1.EtcdQuorum, "True")
	upgrading.Spec.Image = "new"
	requested := cluster(v1alpha1.Recovered, "True")
	requested.Spec.Recovery = &v1alpha1.Recovery{RequestID: "two"}
	stopping := cluster(v1alpha1.Recovered, "True") // handled by the previous request
	stopping.Status.Recovery = &v1alpha1.RecoveryStatus{Stage: v1alpha1.RecoveryStopping}
	outdated := cluster(v1alpha1.CredentialsRotating, "False")
	outdated.Generation = 2
	between := cluster(v1alpha1.CredentialsRotating, "False") // the operator has failed to decide on the next stage
	between.Status.Rotations = &v1alpha1.Rotations{EncryptionKeys: &v1alpha1.Rotation{Stage: "Reissue"}}
	for _, test := range []struct {
		goal    string
		cluster *v1alpha1.ApiServerCluster
		want    bool
	}{
		{"settled", cluster(v1alpha1.EtcdQuorum, "True"), true}, {"settled", outdated, false}, {"settled", requested, false},
		{"available", outdated, true}, {"upgraded", cluster(v1alpha1.EtcdQuorum, "True"), true},
		{"upgraded", upgrading, false}, {"restored", cluster(v1alpha1.Restored, "False"), false}, {
			"restored", cluster(v1alpha1.Restored, "True"), true,
		},
		{"recovered", cluster(v1alpha1.Recovered, "True"), true}, {"recovered", requested, false},
		{"recovered", stopping, false}, {"rotated", cluster(v1alpha1.CredentialsRotating, "False"), true}, {
			"rotated", cluster(v1alpha1.CredentialsRotating, "True"), false,
		},
		{"rotated", outdated, false}, {"rotated", between, false}, {"deleted", outdated, false},
	} {
		if got, err := goals[test.goal](test.cluster); got != test.want || err != nil {
			t.Errorf("%s: got %t, %v", test.goal, got, err)
		}
	}
}

func TestConfirm(t *testing.T) {
	for _, test := range []struct {
		input     string
		asks, yes bool
		ok        bool
	}{
		{"demo\n", true, false, true}, {"yes\n", true, false, false}, {"", true, false, false},
		{"demo\n", false, false, false}, {"", false, true, true},
	} {
		tool := &tool{
			streams: streams{in: strings.NewReader(test.input), err: terminal.NewWriter(&bytes.Buffer{}), asks: test.asks},
		}
		if err := tool.confirm("demo", test.yes); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestProgressFitsTheTerminal checks that a line of progress does not wrap, because only the last of several lines
// would be replaced.
func TestProgressFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{streams: streams{err: terminal.NewWriter(&out), terminal: true, width: func() int { return 10 }}}
	p.show("0/3 ready, and more")
	if want := "\r\x1b[K0/3 re..."; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestProgress checks that a terminal gets one line that is replaced, and other outputs one line per change.
func TestProgress(t *testing.T) {
	for isTerminal, want := range map[bool]string{
		true: "\r\x1b[K0/3\r\x1b[K3/3\n", false: "0/3\n3/3\n",
	} {
		var out bytes.Buffer
		p := &progress{streams: streams{err: terminal.NewWriter(&out), terminal: isTerminal}}
		for _, text := range []string{"0/3", "0/3", "3/3\nsecond line"} {
			p.show(text)
		}
		p.done()
		if out.String() != want {
			t.Errorf("terminal %t: got %q, want %q", isTerminal, out.String(), want)
		}
	}
}

// TestHintsAfterNotFound checks that the names of clusters are a hint only for a cluster that does not exist.
func TestHintsAfterNotFound(t *testing.T) {
	tool, _ := hostileTool(t)
	key := client.ObjectKey{Namespace: "default", Name: "demo"}
	_, clusterErr := tool.kubeconfigContent(t.Context(), client.ObjectKey{Namespace: "default", Name: "nope"}, "")
	_, secretErr := tool.kubeconfigContent(t.Context(), key, "")
	_, resourceErr := tool.kubeconfigContent(t.Context(), key, "ci")
	for want, err := range map[string]error{
		`apiserverclusters.quorate.dev "nope" not found; namespace default has demo`:          clusterErr,
		`read the kubeconfig: secrets "demo-admin-kubeconfig" not found in namespace default`: secretErr,
		`apiserverkubeconfigs.quorate.dev "ci" not found in namespace default`:                resourceErr,
	} {
		if err := tool.explain(t.Context(), err); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
