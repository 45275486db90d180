package bootstrap_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// withSystem returns a server with the system namespaces.
func withSystem(t *testing.T) *builtintest.Server {
	t.Helper()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	if err := bootstrap.New(s, clock.RealClock{}, logr.Discard()).Namespaces(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdentityIsRenewedAndReleased(t *testing.T) {
	s := withSystem(t)
	fake := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	b := bootstrap.New(s, fake, logr.Discard())
	// kube-apiserver's name of the lease of the host "vm".
	const name = "apiserver-wlv32tlttr4jl3gtroqexyxapa"
	lease := func() *coordination.Lease {
		key := resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: name}
		object, err := s.Get(t.Context(), key, resource.ReadOptions{})
		if err != nil {
			return nil
		}
		return object.(*coordination.Lease)
	}
	// The lease of a previous process is replaced.
	must[runtime.Object](t)(s.Create(t.Context(), resource.Key{
		GroupResource: leases, Namespace: metav1.NamespaceSystem,
	}, &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		Spec: coordination.LeaseSpec{
			HolderIdentity: ptr.To("earlier"), LeaseDurationSeconds: ptr.To(int32(1)),
			RenewTime: &metav1.MicroTime{Time: fake.Now()},
		},
	}, resource.WriteOptions{}))
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	stop := background(t, func(ctx context.Context) { b.Identity("vm", "10.0.0.1:6443").Run(ctx, release) })
	<-held
	made := lease()
	if made == nil || *made.Spec.HolderIdentity == "earlier" {
		t.Fatalf("the lease is reported to be held, but is %+v", made)
	}
	if !strings.HasPrefix(*made.Spec.HolderIdentity, name+"_") || *made.Spec.LeaseDurationSeconds != 3600 ||
		made.Labels["apiserver.kubernetes.io/identity"] != "kube-apiserver" ||
		made.Labels["kubernetes.io/hostname"] != "vm" ||
		made.Annotations["kubernetes.io/peer-advertise-address"] != "10.0.0.1:6443" {
		t.Errorf("got %+v %+v", made.ObjectMeta, made.Spec)
	}
	eventually(t, "a timer", fake.HasWaiters)
	fake.Step(11 * time.Second)
	eventually(t, "a renewal", func() bool { return lease().Spec.RenewTime.Time.Equal(fake.Now()) })
	// A lease deleted by a user is created again.
	if err := s.Delete(t.Context(),
		resource.Key{
			GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: name,
		}, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a timer", fake.HasWaiters)
	fake.Step(11 * time.Second)
	eventually(t, "a new lease", func() bool { l := lease(); return l != nil && l.UID != made.UID })
	stop()
	if lease() != nil {
		t.Error("the lease was not released")
	}
}

func TestExpiredIdentitiesAreRemoved(t *testing.T) {
	s := withSystem(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fake := clocktesting.NewFakeClock(now)
	make := func(name, identity string, renewed *metav1.MicroTime) {
		key := resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem}
		must[runtime.Object](t)(s.Create(t.Context(), key, &coordination.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: metav1.NamespaceSystem, Labels: map[string]string{
					"apiserver.kubernetes.io/identity": identity,
				},
			},
			Spec: coordination.LeaseSpec{
				HolderIdentity: ptr.To("x"), LeaseDurationSeconds: ptr.To(int32(3600)), RenewTime: renewed,
			},
		}, resource.WriteOptions{}))
	}
	make("alive", "kube-apiserver", &metav1.MicroTime{Time: now.Add(-59 * time.Minute)})
	make("dead", "kube-apiserver", &metav1.MicroTime{Time: now.Add(-61 * time.Minute)})
	make("bare", "kube-apiserver", nil)
	make("other", "something-else", &metav1.MicroTime{Time: now.Add(-61 * time.Minute)})
	s.Settle(t, leases, metav1.NamespaceSystem+"/other")
	background(t, func(ctx context.Context) {
		bootstrap.New(s, fake, logr.Discard()).IdentityCleanupLoop().Run(ctx, fake, logr.Discard())
	})
	eventually(t, "removal", func() bool {
		_, dead := s.Get(t.Context(),
			resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: "dead"},
			resource.ReadOptions{})
		_, bare := s.Get(t.Context(),
			resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: "bare"},
			resource.ReadOptions{})
		return apierrors.IsNotFound(dead) && apierrors.IsNotFound(bare)
	})
	for _, name := range []string{"alive", "other"} {
		must[runtime.Object](t)(s.Get(t.Context(),
			resource.Key{GroupResource: leases, Namespace: metav1.NamespaceSystem, Name: name},
			resource.ReadOptions{}))
	}
}

// newCertificate returns a self-signed CA certificate in PEM.
func newCertificate(t *testing.T, name string, until time.Time) []byte {
	t.Helper()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: until, IsCA: true,
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestAuthenticationIsMergedWithPublished(t *testing.T) {
	s := withSystem(t)
	now := time.Now()
	first, second, proxy := newCertificate(t, "first", now.Add(time.Hour)), newCertificate(t, "second",
		now.Add(time.Hour)), newCertificate(t, "proxy", now.Add(time.Hour))
	old := newCertificate(t, "old", now.Add(-time.Hour))
	published := func() map[string]string {
		key := resource.Key{
			GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.AuthenticationConfigMap,
		}
		object, err := s.Get(t.Context(), key, resource.ReadOptions{})
		if err != nil {
			return nil
		}
		return object.(*core.ConfigMap).Data
	}
	must[runtime.Object](t)(s.Create(t.Context(), resource.Key{
		GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem,
	}, &core.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrap.AuthenticationConfigMap},
		Data: map[string]string{
			"client-ca-file": string(old) + string(first), "stray": "x", "requestheader-client-ca-file": string(proxy),
			"requestheader-allowed-names": `["other"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
		},
	}, resource.WriteOptions{}))
	var current atomic.Pointer[[]byte]
	current.Store(&first)
	changed := bootstrap.NewSignal()
	own := bootstrap.Authentication{
		ClientCA: func() []byte { return *current.Load() }, RequestHeaderCA: func() []byte { return proxy },
		UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"},
		ExtraHeaderPrefixes: []string{"X-Remote-Extra-"}, AllowedNames: []string{"front-proxy-client"},
	}
	b := bootstrap.New(s, clock.RealClock{}, logr.Discard())
	background(t, func(ctx context.Context) {
		b.AuthenticationLoop(own, changed).Run(ctx, clock.RealClock{}, logr.Discard())
	})
	background(t, func(ctx context.Context) {
		key := resource.Key{
			GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.AuthenticationConfigMap,
		}
		_ = s.Follow(ctx, key, follow.Options{Changed: changed.Send})
	})
	want := map[string]string{
		"client-ca-file": string(first), "requestheader-client-ca-file": string(proxy),
		"requestheader-allowed-names": `["other","front-proxy-client"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	eventually(t, "the merged ConfigMap", func() bool { return equalMaps(published(), want) })
	// The CA bundle file is replaced.
	current.Store(&second)
	changed.Send()
	want["client-ca-file"] = string(bytes.Join([][]byte{first, second}, nil))
	eventually(t, "the new CA beside the old one", func() bool { return equalMaps(published(), want) })
	// A ConfigMap deleted by a user is created again with this replica's values.
	if err := s.Delete(t.Context(),
		resource.Key{
			GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.AuthenticationConfigMap,
		},
		&metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want["client-ca-file"], want["requestheader-allowed-names"] = string(second), `["front-proxy-client"]`
	eventually(t, "the new ConfigMap", func() bool { return equalMaps(published(), want) })
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if b[key] != value {
			return false
		}
	}
	return true
}

func TestLegacyTokenTracking(t *testing.T) {
	s := withSystem(t)
	fake := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	since := func() string {
		key := resource.Key{
			GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.LegacyTokensConfigMap,
		}
		object, err := s.Get(t.Context(), key, resource.ReadOptions{})
		if err != nil {
			return ""
		}
		return object.(*core.ConfigMap).Data["since"]
	}
	changed := bootstrap.NewSignal()
	background(t, func(ctx context.Context) {
		bootstrap.New(s, fake, logr.Discard()).LegacyTokensLoop(changed).Run(ctx, fake, logr.Discard())
	})
	eventually(t, "the date", func() bool { return since() == "2026-01-02" })
	s.Settle(t, bootstrap.ConfigMaps, metav1.NamespaceSystem+"/"+bootstrap.LegacyTokensConfigMap)
	key := resource.Key{
		GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: bootstrap.LegacyTokensConfigMap,
	}
	must[runtime.Object](t)(s.Update(t.Context(), key, func(object runtime.Object) error {
		object.(*core.ConfigMap).Data["since"] = "no date"
		return nil
	}, resource.WriteOptions{}))
	eventually(t, "the repaired date", func() bool { changed.Send(); return since() == "2026-01-02" })
	// It is not created again at once: a server without tracking may have deleted it.
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a timer", fake.HasWaiters)
	fake.Step(29 * time.Minute)
	eventually(t, "a timer", fake.HasWaiters)
	if since() != "" {
		t.Error("created again too early")
	}
	fake.Step(2 * time.Minute)
	eventually(t, "the new ConfigMap", func() bool { return since() == "2026-01-02" })
}

func TestFlowControl(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	b := bootstrap.New(s, clock.RealClock{}, logr.Discard())
	pass := func() {
		t.Helper()
		if err := b.FlowControl(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	level := func(name string) *flowcontrol.PriorityLevelConfiguration {
		key := resource.Key{GroupResource: bootstrap.PriorityLevels, Name: name}
		return must[runtime.Object](t)(s.Get(t.Context(), key,
			resource.ReadOptions{})).(*flowcontrol.PriorityLevelConfiguration)
	}
	shares := func(name, automatic string, shares int32) {
		must[runtime.Object](t)(s.Update(t.Context(), resource.Key{
			GroupResource: bootstrap.PriorityLevels, Name: name,
		}, func(object runtime.Object) error {
			level := object.(*flowcontrol.PriorityLevelConfiguration)
			level.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] = automatic
			level.Spec.Limited.NominalConcurrencyShares = shares
			return nil
		}, resource.WriteOptions{}))
	}
	shares("catch-all", "false", 5)      // mandatory: always updated; its shares are immutable
	shares("workload-low", "true", 78)   // suggested and managed: updated
	shares("global-default", "false", 5) // suggested and taken over by users: kept
	obsolete := level("workload-high")
	must[runtime.Object](t)(s.Create(t.Context(), resource.Key{
		GroupResource: bootstrap.PriorityLevels,
	}, &flowcontrol.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "obsolete",
			Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}}, Spec: obsolete.Spec,
	}, resource.WriteOptions{}))
	s.Settle(t, bootstrap.PriorityLevels, "catch-all", "workload-low", "global-default", "obsolete")
	pass()
	for name, want := range map[string]int32{"catch-all": 5, "workload-low": 100, "global-default": 5} {
		if got := level(name).Spec.Limited.NominalConcurrencyShares; got != want {
			t.Errorf("%s has %d shares, want %d", name, got, want)
		}
	}
	if level("catch-all").Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
		t.Error("a mandatory level is not managed")
	}
	key := resource.Key{GroupResource: bootstrap.PriorityLevels, Name: "obsolete"}
	if _, err := s.Get(t.Context(), key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an obsolete suggested level was not deleted: %v", err)
	}
}
