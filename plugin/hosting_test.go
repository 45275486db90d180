package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
	"quorate.dev/test/upstream"
)

// hosting is a hosting cluster: an API server, which commands find through $KUBECONFIG.
type hosting struct {
	t      *testing.T
	admin  *rest.Config
	client client.Client
}

// startHosting starts a hosting cluster without the operator's CustomResourceDefinitions.
func startHosting(t *testing.T) *hosting {
	t.Helper()
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(directory)
	must(t, err)
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	must(t, err)
	server.StopAfter(t)
	c, err := client.New(server.Admin, client.Options{Scheme: overview.Scheme()})
	must(t, err)
	h := &hosting{t: t, admin: server.Admin, client: c}
	t.Setenv("KUBECONFIG", h.kubeconfig(server.Admin))
	t.Setenv("HOME", t.TempDir())
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kubeconfig returns a file with a client configuration.
func (h *hosting) kubeconfig(config *rest.Config) string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "config")
	must(h.t, upstream.WriteKubeconfig(file, config))
	return file
}

// install creates the operator's CustomResourceDefinitions.
func (h *hosting) install() {
	h.t.Helper()
	log.SetLogger(logr.Discard()) // envtest warns about the lack of a logger
	_, err := envtest.InstallCRDs(h.admin, envtest.CRDInstallOptions{
		Paths: []string{"../config/crd"}, ErrorIfPathMissing: true,
	})
	must(h.t, err)
}

// create creates an object and stores the status that it has.
func (h *hosting) create(object client.Object) {
	h.t.Helper()
	status, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		h.t.Fatalf("%T is no object", object)
	}
	must(h.t, h.client.Create(h.t.Context(), object))
	status.SetResourceVersion(object.GetResourceVersion())
	status.SetUID(object.GetUID())
	if _, hasStatus := object.(*corev1.Secret); !hasStatus {
		must(h.t, h.client.Status().Update(h.t.Context(), status))
	}
}

// cluster returns the ApiServerCluster demo as it is stored.
func (h *hosting) cluster() *v1alpha1.ApiServerCluster {
	h.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	must(h.t, h.client.Get(h.t.Context(), client.ObjectKey{Namespace: "default", Name: "demo"}, cluster))
	return cluster
}

// condition sets a condition of demo, as the operator does.
func (h *hosting) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	h.t.Helper()
	cluster := h.cluster()
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: cluster.Generation,
	})
	cluster.Status.ObservedGeneration = cluster.Generation
	must(h.t, h.client.Status().Update(h.t.Context(), cluster))
}

// exitCode returns the exit code of the process for the error of a command.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return ExitError
}

// step is a command, and what its user sees: its exit code, and texts in its output or its error.
type step struct {
	args string
	code int
	want []string
}

func (h *hosting) check(steps ...step) {
	h.t.Helper()
	for _, s := range steps {
		out, err := execute(h.t, strings.Split(s.args, " ")...)
		seen := fmt.Sprintf("%sError: %v", out, err)
		if got := exitCode(err); got != s.code {
			h.t.Errorf("%s: exit code %d, want %d:\n%s", s.args, got, s.code, seen)
		}
		for _, want := range s.want {
			if !strings.Contains(seen, want) {
				h.t.Errorf("%s: got\n%s\nwant %s", s.args, seen, want)
			}
		}
	}
}

// output is the output of a command that is running.
type output struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // closed when text changes
}

// Write implements io.Writer.
func (o *output) Write(content []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(content)
}

func (o *output) read() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.changed
}

// running is a command that runs until it has seen a change, or until it is cancelled.
type running struct {
	t       *testing.T
	out     *output
	cancel  context.CancelFunc
	expired <-chan struct{}
	done    chan error
}

// begin starts a command without waiting for its end. If input is not empty, the command asks questions, and reads the
// answers from input.
func (h *hosting) begin(input, args string) *running {
	ctx, cancel := context.WithTimeout(h.t.Context(), 3*time.Minute)
	h.t.Cleanup(cancel)
	r := &running{
		t: h.t, out: &output{changed: make(chan struct{})}, cancel: cancel, expired: ctx.Done(), done: make(chan error, 1),
	}
	w := terminal.NewWriter(r.out)
	go func() {
		r.done <- run(ctx, streams{in: strings.NewReader(input), out: w, err: w, asks: input != ""}, strings.Split(args, " "))
	}()
	return r
}

// await waits until the output matches an expression, and returns the match of its first group.
func (r *running) await(expression string) string {
	r.t.Helper()
	for pattern := regexp.MustCompile(expression); ; {
		text, changed := r.out.read()
		if match := pattern.FindStringSubmatch(text); match != nil {
			return match[len(match)-1]
		}
		select {
		case <-changed:
		case <-r.expired:
			r.t.Fatalf("got %s, want %s", text, expression)
		}
	}
}

// ends checks the exit code of the command and texts in its output or its error.
func (r *running) ends(code int, want ...string) {
	r.t.Helper()
	err := <-r.done
	text, _ := r.out.read()
	text = fmt.Sprintf("%sError: %v", text, err)
	if got := exitCode(err); got != code {
		r.t.Errorf("exit code %d, want %d:\n%s", got, code, text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			r.t.Errorf("got\n%s\nwant %s", text, w)
		}
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }

// newDemo returns the ApiServerCluster demo, which the operator has not seen yet.
func newDemo() *v1alpha1.ApiServerCluster {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: named("demo")}
	cluster.Spec.Replicas = ptr.To[int32](3)
	return cluster
}
