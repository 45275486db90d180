// Package envtest is a typical suite of an operator with controller-runtime's envtest. It runs on this project's binary
// alone, which is kube-apiserver and etcd through links of these names, as described in docs/envtest.md.
package envtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"quorate.dev/test/upstream"
)

const (
	patience     = 20 * time.Second
	pollInterval = 20 * time.Millisecond
)

// link creates a directory of assets, as setup-envtest does.
func link(t *testing.T, apiServer, etcd string) string {
	t.Helper()
	directory := t.TempDir()
	for name, target := range map[string]string{"kube-apiserver": apiServer, "etcd": etcd} {
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func binary(t *testing.T, find func(context.Context) (string, error)) string {
	t.Helper()
	path, err := find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts the environment with a directory of assets, and returns how long it took.
func start(t *testing.T, assets string) (*rest.Config, time.Duration) {
	t.Helper()
	log.SetLogger(logr.Discard())
	environment := &envtest.Environment{
		BinaryAssetsDirectory: assets, CRDDirectoryPaths: []string{"testdata"}, ErrorIfCRDPathMissing: true,
	}
	begin := time.Now()
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config, time.Since(begin)
}

// suite is a running operator.
type suite struct {
	*testing.T
	client.Client
	reconciler *reconciler
}

func newSuite(t *testing.T, quorate string) *suite {
	t.Helper()
	config, _ := start(t, link(t, quorate, quorate))
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		t.Fatal(err)
	}
	addToScheme(types)
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: types, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{Client: manager.GetClient()}
	if err := r.setup(manager); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	direct, err := client.New(config, client.Options{Scheme: types})
	if err != nil {
		t.Fatal(err)
	}
	return &suite{t, direct, r}
}

func (s *suite) await(what string, condition func() error) {
	s.Helper()
	last := errors.New("never asked")
	err := wait.PollUntilContextTimeout(s.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("timed out waiting for %s: %v", what, last)
	}
}

// awaitText waits until the ConfigMap and the status contain a text.
func (s *suite) awaitText(greeting *Greeting, want string) {
	s.Helper()
	key, words := client.ObjectKeyFromObject(greeting), &core.ConfigMap{}
	s.await(want, func() error {
		if err := s.Get(s.Context(), key, words); err != nil {
			return err
		}
		if err := s.Get(s.Context(), key, greeting); err != nil {
			return err
		}
		if words.Data["text"] != want || greeting.Status.Text != want ||
			greeting.Status.ObservedGeneration != greeting.Generation {
			return errors.New(words.Data["text"] + "; status " + greeting.Status.Text)
		}
		return nil
	})
}

func TestEnvironment(t *testing.T) {
	upstream.NeedsProcesses(t)
	quorate := binary(t, upstream.Quorate)
	s := newSuite(t, quorate)
	t.Run("reconciler", func(t *testing.T) { life(&suite{t, s.Client, s.reconciler}) })
	t.Run("schema", func(t *testing.T) { validation(&suite{t, s.Client, s.reconciler}) })
	t.Run("start", func(t *testing.T) { compareStart(t, quorate) })
}

// life creates, updates and deletes a resource and its dependents.
func life(s *suite) {
	greeting := &Greeting{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "first"}, Spec: GreetingSpec{Name: "world"},
	}
	if err := s.Create(s.Context(), greeting); err != nil {
		s.Fatal(err)
	}
	s.awaitText(greeting, "Hello, world") // the default of the schema

	stale := greeting.DeepCopyObject().(*Greeting)
	greeting.Spec.Word = "Good morning"
	if err := s.Update(s.Context(), greeting); err != nil {
		s.Fatal(err)
	}
	s.awaitText(greeting, "Good morning, world")
	stale.Spec.Word = "Good night"
	if err := s.Update(s.Context(), stale); !apierrors.IsConflict(err) {
		s.Errorf("an update of what has changed meanwhile: %v", err)
	}

	words := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "first"}}
	if err := s.Delete(s.Context(), words); err != nil {
		s.Fatal(err)
	}
	s.awaitText(greeting, "Good morning, world") // the watch of owned objects restores it

	if err := s.Delete(s.Context(), greeting); err != nil {
		s.Fatal(err)
	}
	s.await("the end", func() error {
		err := s.Get(s.Context(), client.ObjectKeyFromObject(greeting), greeting)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	if !s.reconciler.bade("first") {
		s.Error("deleted before the finalizer ran")
	}
}

// validation checks rules, defaults and the status subresource.
func validation(s *suite) {
	for want, spec := range map[string]GreetingSpec{
		"a name is not a word": {Name: "same", Word: "same"},
		"spec.name: Invalid value: \"\": spec.name in body should be at least 1 chars long": {},
	} {
		err := s.Create(s.Context(), &Greeting{ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "bad"}, Spec: spec})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			s.Errorf("%+v: %v", spec, err)
		}
	}
	greeting := &Greeting{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "good"}, Spec: GreetingSpec{Name: "world"},
		Status: GreetingStatus{Text: "a lie"},
	}
	if err := s.Create(s.Context(), greeting); err != nil {
		s.Fatal(err)
	}
	if greeting.Status.Text != "" {
		s.Errorf("the creation set the status: %+v", greeting.Status)
	}
}

// compareStart checks that this environment starts in less time than the one of kube-apiserver and etcd, and logs both
// durations. The difference is large enough for a busy machine.
func compareStart(t *testing.T, quorate string) {
	kubernetes := binary(t, func(ctx context.Context) (string, error) { return upstream.Binary(ctx, "kube-apiserver") })
	_, ours := start(t, link(t, quorate, quorate))
	_, theirs := start(t, link(t, kubernetes, binary(t, upstream.Etcd)))
	t.Logf("an environment with a definition is there after %s, with kube-apiserver and etcd after %s",
		ours.Round(10*time.Millisecond), theirs.Round(10*time.Millisecond))
	if ours >= theirs {
		t.Error("kube-apiserver and etcd start sooner, contrary to docs/envtest.md")
	}
}
