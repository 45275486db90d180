package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
)

// hostileText sets the title of a terminal, erases the screen, writes an additional line, and reverses the order of
// text.
const hostileText = "x\x1b]0;owned\x07\u009b2J\r\u202eevil\n\nNext: run this"

// hostileTool returns a tool whose hosting cluster has hostile text in every field that other users can write, and its
// output.
func hostileTool(t *testing.T) (*tool, *bytes.Buffer) {
	t.Helper()
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	cluster.Status.Version, cluster.Status.Endpoint = hostileText, hostileText
	for _, kind := range []string{v1alpha1.Degraded, v1alpha1.Progressing, v1alpha1.Restored} {
		cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: hostileText, Message: hostileText,
		})
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "demo-0", Labels: map[string]string{
			desired.ClusterLabel: "demo", desired.RoleLabel: hostileText,
		},
	}}
	pod.Spec.NodeName, pod.Spec.Containers = hostileText, []corev1.Container{{Name: "apiserver"}}
	pod.Status.Reason, pod.Status.Phase = hostileText, corev1.PodFailed
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "demo-0"}, Reason: hostileText, Message: hostileText,
	}
	backup := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}}
	backup.Spec.ClusterName = "demo"
	backup.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.BackupComplete, Status: metav1.ConditionUnknown, Reason: hostileText, Message: hostileText,
	}}
	out := &bytes.Buffer{}
	w := terminal.NewWriter(out)
	return &tool{
		streams: streams{in: strings.NewReader(""), out: w, err: w}, now: time.Now, namespace: "default",
		client: fake.NewClientBuilder().WithScheme(overview.Scheme()).WithObjects(cluster, pod, event, backup).
			WithStatusSubresource(cluster).Build(),
	}, out
}

// TestHostileTextIsEscaped checks that no command passes control characters in a cluster's objects to the terminal, and
// that text in objects cannot look like a line that the command prints itself.
func TestHostileTextIsEscaped(t *testing.T) {
	for name, print := range map[string]func(*tool) error{
		"status": func(tool *tool) error { return tool.status(t.Context(), []string{"demo"}, statusOptions{}) },
		"list":   func(tool *tool) error { return tool.status(t.Context(), nil, statusOptions{allNamespaces: true}) },
		"wait": func(tool *tool) error {
			cluster := &v1alpha1.ApiServerCluster{}
			if err := tool.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "demo"}, cluster); err != nil {
				return err
			}
			(&progress{streams: tool.streams}).show(describe(cluster))
			return errors.New("is not displayed")
		},
	} {
		t.Run(name, func(t *testing.T) {
			tool, out := hostileTool(t)
			if err := print(tool); err == nil {
				t.Error("the cluster is not healthy")
			}
			if text := out.Bytes(); !terminal.Plain(text) || !strings.Contains(out.String(), `x\x1b]0;owned\x07`) {
				t.Errorf("got %q", text)
			}
			if strings.Contains(out.String(), "\nNext: run this") {
				t.Errorf("a message looks like a line of the command: %q", out)
			}
		})
	}
}

// TestHostileTextIsExactInJSONAndYAML checks that the output for scripts contains the exact text.
func TestHostileTextIsExactInJSONAndYAML(t *testing.T) {
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(text []byte, into any) error { return yaml.Unmarshal(text, into) },
	} {
		tool, out := hostileTool(t)
		var coded *codeError
		if err := tool.status(t.Context(), []string{"demo"}, statusOptions{format: format}); !errors.As(err, &coded) {
			t.Fatal(err)
		}
		if !terminal.Plain(out.Bytes()) {
			t.Errorf("%s: got %q", format, out)
		}
		var decoded overview.Overview
		if err := decode(out.Bytes(), &decoded); err != nil || decoded.Version != hostileText ||
			decoded.Problems[0].Message != hostileText {
			t.Errorf("%s: got %v, %q", format, err, decoded.Version)
		}
	}
}

// TestHostileLogs checks that a log line cannot write control characters.
func TestHostileLogs(t *testing.T) {
	tool, out := hostileTool(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("first\tcolumn \x1b[31m\r\xff\nsecond\n"))
	}))
	defer server.Close()
	tool.config = &rest.Config{Host: server.URL}
	key := client.ObjectKey{Namespace: "default", Name: "demo"}
	if err := tool.logs(t.Context(), key, logOptions{replicas: true, tail: -1}); err != nil {
		t.Fatal(err)
	}
	if want := "first\tcolumn " + `\x1b[31m\r\xff` + "\nsecond\n"; out.String() != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
