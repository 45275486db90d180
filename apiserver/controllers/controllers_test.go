package controllers_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/controllers"
	"quorate.dev/test/upstream"
)

// flaky fails discovery requests while fails is set.
type flaky struct {
	http.RoundTripper
	fails *atomic.Bool
}

func (f flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/api") && strings.Count(r.URL.Path, "/") == 1 && f.fails.Load() {
		return nil, errors.New("discovery fails")
	}
	return f.RoundTripper.RoundTrip(r)
}

func TestCheck(t *testing.T) {
	for _, names := range [][]string{nil, {controllers.All}, controllers.Names()} {
		if err := controllers.Check(names); err != nil {
			t.Errorf("%v: %v", names, err)
		}
	}
	if err := controllers.Check([]string{controllers.Namespace, "deployment"}); err == nil ||
		!strings.Contains(err.Error(), `"deployment"`) {
		t.Errorf("an unknown controller: %v", err)
	}
}

// TestLeaseIsReleasedWhenControllersFailToStart: another replica can acquire it, and this one retries later.
func TestLeaseIsReleasedWhenControllersFailToStart(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the server")
	}
	directory := t.TempDir()
	pki, err := upstream.NewPKI(directory)
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{PKI: pki, Directory: directory})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	client, err := kubernetes.NewForConfig(server.Admin)
	if err != nil {
		t.Fatal(err)
	}
	var fails atomic.Bool
	fails.Store(true)
	config := rest.CopyConfig(server.Admin)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return flaky{inner, &fails} })
	fake := testingclock.NewFakeClock(time.Now())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- controllers.Run(ctx, controllers.Options{
			Enabled: []string{controllers.ResourceQuota}, Client: config, Identity: "first", Clock: fake, Logger: logr.Discard(),
			Informers: func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(client, 0) },
		})
	}()
	holds := func(identity string) func() bool {
		return func() bool {
			lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(),
				"quorate-controllers", metav1.GetOptions{})
			return err == nil && ptr.Deref(lease.Spec.HolderIdentity, "unset") == identity
		}
	}
	eventually(t, "the lease is released", holds(""))
	fails.Store(false)
	eventually(t, "the replica pauses", fake.HasWaiters)
	fake.Step(time.Minute)
	eventually(t, "the lease is held again", holds("first"))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !holds("")() {
		t.Error("a stopped replica holds the lease")
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("timed out waiting: %s", what)
	}
}
