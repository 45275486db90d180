package rotations_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/rotations"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// replica is the pod of an API server with an etcd member. Both use the credentials that the replica has loaded last.
type replica struct {
	pod corev1.Pod

	mutex   sync.Mutex
	loaded  credentials.Set
	clients []byte // PEM authorities of API clients and front proxies
}

// newReplica starts a replica at a new address, with credentials that it has read at its start.
func newReplica(t *testing.T, address string, cluster *v1alpha1.ApiServerCluster, c credentials.Set) *replica {
	t.Helper()
	r := &replica{pod: corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0", Labels: desired.Labels(cluster)},
		Status:     corev1.PodStatus{PodIP: address},
	}}
	r.load(c)
	r.serve(t, desired.SecurePort, func() (pki.Pair, []byte) { return r.loaded.Leaves[desired.ServingSecret], r.clients })
	if !cluster.ExternalEtcd() {
		r.pod.Labels[desired.RoleLabel] = desired.RoleMember
		r.restart(cluster, c, ownedtest.Now())
		r.serve(t, desired.ClientPort, func() (pki.Pair, []byte) {
			return r.loaded.Leaves[desired.EtcdServerSecret], r.loaded.Bundles[desired.EtcdClientDomain].Trusted()
		})
	}
	return r
}

// load loads the files of Secrets.
func (r *replica) load(c credentials.Set) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.loaded = c
	r.clients = slices.Concat(c.Bundles[desired.ClientDomain].Trusted(), c.Bundles[desired.FrontProxyDomain].Trusted())
}

// restart creates the pod again. Its etcd reads the authorities in c.
func (r *replica) restart(cluster *v1alpha1.ApiServerCluster, c credentials.Set, now time.Time) {
	r.pod.CreationTimestamp = metav1.NewTime(now)
	r.pod.Annotations = map[string]string{
		desired.AuthorityHashAnnotation: desired.AuthorityHash(cluster, c.Bundles),
	}
}

// serve starts a server with TLS at a port. used returns its certificate and the authorities of its clients.
func (r *replica) serve(t *testing.T, port int, used func() (pki.Pair, []byte)) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(r.pod.Status.PodIP, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(r)
	server.Listener.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Listener = tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			pair, authorities := used()
			certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
			clients := x509.NewCertPool()
			clients.AppendCertsFromPEM(authorities)
			return &tls.Config{
				Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequestClientCert,
				MinVersion: tls.VersionTLS12,
			}, err
		},
	})
	server.Start()
	t.Cleanup(server.Close)
}

// ServeHTTP implements http.Handler. It serves the keys that verify tokens.
func (r *replica) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if request.URL.Path != "/openid/v1/jwks" {
		return
	}
	keys := []map[string]string{}
	for _, id := range pki.KeyIDs(r.loaded.Keys.Verifying()) {
		keys = append(keys, map[string]string{"kid": id})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
}

// recent returns a time at which certificates that the test issues are valid for the replicas, whose clock is real.
func recent() time.Time { return time.Now().Add(-48 * time.Hour).Truncate(time.Second) }

// requestedAt returns a change of a cluster: everything that was created before a time is replaced, and former
// credentials are accepted for an hour.
func requestedAt(at time.Time) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) {
		authorities, keys := &c.Spec.Certificates.Authorities, &c.Spec.Certificates.ServiceAccountKeys
		authorities.RotateBefore, keys.RotateBefore = &metav1.Time{Time: at}, &metav1.Time{Time: at}
		authorities.Overlap = &metav1.Duration{Duration: time.Hour}
		keys.Overlap = &metav1.Duration{Duration: time.Hour}
		c.Spec.Replicas = ptr.To[int32](1)
	}
}

// waits returns the message of a rotation, without times.
func waits(result stages.Result, kind stages.Kind) string {
	for _, r := range result.Rotations {
		if r.Name == kind.Name {
			message, _, _ := strings.Cut(r.Message, ", until ")
			message, _, _ = strings.Cut(message, " until ")
			return message
		}
	}
	return ""
}

// TestStagesWaitForReplica follows the rotations of authorities and keys with one replica: each stage waits until the
// replica uses the credentials of the stage, and the replica is restarted if its etcd has read former authorities.
func TestStagesWaitForReplica(t *testing.T) {
	now := recent()
	h := ownedtest.NewHost(t, ownedtest.NewCluster(requestedAt(now.Add(time.Minute))))
	current, _, err := reconcile(t, h, now)
	h.Must(err)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, ownedtest.Bootstrapped)
	r := newReplica(t, "127.202.40.1", h.Cluster(), current)
	const (
		static    = "etcd reads its authorities only when it starts"
		names     = "authorities of clients"
		leaves    = "serving certificate, etcd's serving certificate"
		allLeaves = "serving certificate, authorities of clients, etcd's serving certificate"
		keys      = "Waiting for demo-0: service-account keys"
	)
	for _, step := range []struct {
		name            string
		after           time.Duration
		loads, restarts bool // the replica loads the new files, or restarts, before the step
		stages          string
		authorities     string // the reason why the rotation of the authorities waits
		keys            string // the reason why the rotation of the keys waits
		restart         bool   // the replica has to restart
	}{
		{name: "requested", after: time.Hour, stages: "TrustBoth/TrustBoth"},
		{
			name: "new authorities and keys", after: time.Second, stages: "TrustBoth/TrustBoth",
			authorities: "Waiting for demo-0: " + names + ", " + static, keys: keys,
		},
		{
			name: "files are not loaded in time", after: 5 * time.Minute, stages: "TrustBoth/TrustBoth",
			authorities: "Waiting for demo-0: " + names + ", " + static, keys: keys, restart: true,
		},
		{
			name: "files are loaded", loads: true, stages: "TrustBoth/TrustBoth",
			authorities: "Waiting for demo-0: " + static, keys: "Publishing the new one before its first use", restart: true,
		},
		{
			name: "the replica was restarted", restarts: true, stages: "Reissue/TrustBoth",
			keys: "Publishing the new one before its first use",
		},
		{
			name: "new certificates", after: time.Second, stages: "Reissue/TrustBoth",
			authorities: "Waiting for demo-0: " + leaves, keys: "Publishing the new one before its first use",
		},
		{
			name: "certificates are loaded", loads: true, stages: "Reissue/TrustBoth",
			authorities: "Trusting the old one", keys: "Publishing the new one before its first use",
		},
		{name: "an hour later", after: time.Hour, stages: "DropOld/Reissue"},
		{
			name: "former authorities removed, new key signs", after: time.Second, stages: "DropOld/Reissue",
			authorities: "Waiting for demo-0: " + allLeaves + ", " + static, keys: keys,
		},
		{
			name: "loaded and restarted", loads: true, restarts: true, stages: "/Reissue", keys: "Trusting the old one",
		},
		{name: "another hour later", after: time.Hour, stages: "/DropOld"},
		{name: "former key removed", after: time.Second, stages: "/DropOld", keys: keys},
		{name: "keys are loaded", loads: true, stages: "/"},
	} {
		now = now.Add(step.after)
		if step.loads {
			r.load(current)
		}
		if step.restarts {
			r.restart(h.Cluster(), current, now)
		}
		var result stages.Result
		current, result, err = reconcile(t, h, now, r.pod)
		h.Must(err)
		if got := stagesOf(h); got != step.stages {
			t.Fatalf("%s: stages %q, want %q: %+v", step.name, got, step.stages, result)
		}
		if got := waits(result, stages.Authorities); got != step.authorities {
			t.Errorf("%s: authorities wait: %q, want %q", step.name, got, step.authorities)
		}
		if got := waits(result, stages.ServiceAccountKeys); got != step.keys {
			t.Errorf("%s: keys wait: %q, want %q", step.name, got, step.keys)
		}
		if got := slices.Contains(result.Restart, "demo-0"); got != step.restart {
			t.Errorf("%s: restarts %q, want %t", step.name, result.Restart, step.restart)
		}
	}
}

// TestReplicaOfExtension checks which authorities of clients an API server in mode Extension has to list: the
// authorities of its host, which it lists too, do not matter, but a former authority of the cluster does.
func TestReplicaOfExtension(t *testing.T) {
	now := recent()
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, extension, requestedAt(now.Add(time.Minute))))
	var current credentials.Set
	for _, after := range []time.Duration{0, time.Hour, time.Second} {
		now = now.Add(after)
		var err error
		current, _, err = reconcile(t, h, now)
		h.Must(err)
	}
	cluster := h.Cluster()
	authority := func(name string) []byte {
		a, err := pki.NewAuthority(name, 24*time.Hour, now)
		h.Must(err)
		return a.Certificate
	}
	r := newReplica(t, "127.202.40.2", cluster, current)
	bundle := current.Bundles[desired.ClientDomain]
	host := authority("kubernetes")
	former := authority(rotations.AuthorityName(cluster, desired.ClientDomain) + "@1767225600")
	for name, test := range map[string]struct {
		clients []byte
		loaded  bool
	}{
		"both authorities and the host's":      {slices.Concat(host, bundle.Trusted()), true},
		"both authorities":                     {bundle.Trusted(), true},
		"the host's":                           {host, false},
		"the old authority and the host's":     {slices.Concat(bundle.Signer.Certificate, host), false},
		"the new authority and the host's":     {slices.Concat(bundle.Next.Certificate, host), false},
		"both authorities and one of the past": {slices.Concat(bundle.Trusted(), former), false},
		"none":                                 {nil, false},
	} {
		r.mutex.Lock()
		r.clients = test.clients
		r.mutex.Unlock()
		result, err := rotations.Plan(t.Context(), h.Objects, rotations.PlanInput{
			State:       &observed.State{Cluster: h.Cluster(), Pods: []corev1.Pod{r.pod}},
			Credentials: current, Now: now,
		})
		h.Must(err)
		want := "Waiting for demo-0: authorities of clients"
		if test.loaded {
			want = "Publishing the new one before its first use"
		}
		if got := waits(result, stages.Authorities); got != want {
			t.Errorf("%s: waits for %q, want %q", name, got, want)
		}
	}
}

// TestUnusableClientCertificate checks that no stage is entered while the operator has no client certificate with which
// it could read the credentials of replicas.
func TestUnusableClientCertificate(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, requested))
	_, _, err := reconcile(t, h, ownedtest.Now())
	h.Must(err)
	later := ownedtest.Now().Add(365 * 24 * time.Hour)
	current, _, err := reconcile(t, h, later)
	h.Must(err)
	for name, pair := range map[string]pki.Pair{
		"missing":     {},
		"another key": {Certificate: current.Leaves[desired.AdminSecret].Certificate, Key: current.Keys.Signer.Key},
	} {
		current.Leaves[desired.AdminSecret] = pair
		_, err := rotations.Plan(t.Context(), h.Objects, rotations.PlanInput{
			State: &observed.State{Cluster: h.Cluster()}, Credentials: current, Now: later.Add(365 * 24 * time.Hour),
		})
		if got := stagesOf(h); err == nil || !strings.Contains(err.Error(), "client certificate") ||
			got != "TrustBoth/TrustBoth" {
			t.Errorf("%s: stages %s, %v", name, got, err)
		}
	}
}

// TestAdvance checks which authorities and keys each stage derives from the Secrets. The Secrets may have been restored
// from a copy of another stage.
func TestAdvance(t *testing.T) {
	const (
		former, both, promoted, replaced = "old", "old, next: new", "new, previous: old", "new"
	)
	now := ownedtest.Now().Add(time.Hour)
	authority := func(name string) pki.Authority {
		a, err := pki.NewAuthority(name, 24*time.Hour, ownedtest.Now())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	key := func() pki.Pair {
		pair, err := pki.NewServiceAccountKey()
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	oldAuthority, newAuthority, oldKey, newKey := authority("old"), authority("new"), key(), key()
	added, err := (pki.Bundle{Signer: oldAuthority}).Add(newAuthority, now)
	if err != nil {
		t.Fatal(err)
	}
	bundles := map[string]pki.Bundle{
		former: {Signer: oldAuthority}, both: added, promoted: added.Promote(), replaced: added.Promote().Drop(),
	}
	keys := map[string]pki.Keys{former: {Signer: oldKey}, both: (pki.Keys{Signer: oldKey}).Add(newKey)}
	keys[promoted] = keys[both].Promote()
	keys[replaced] = keys[promoted].Drop()
	// describe describes a signer, its successor and its predecessors. Credentials other than the old ones are new.
	describe := func(isOld, next, nextIsOld bool, previous, old []byte) string {
		name := map[bool]string{true: "old", false: "new"}
		text := name[isOld]
		if next {
			text += ", next: " + name[nextIsOld]
		}
		if len(previous) > 0 {
			text += ", previous: " + name[string(previous) == string(old)]
		}
		return text
	}
	for _, test := range []struct {
		stage        rotation.Stage
		before, want string
	}{
		{rotation.None, former, former},
		{rotation.None, both, both},
		{rotation.TrustBoth, former, both},
		{rotation.TrustBoth, both, both},
		{rotation.TrustBoth, promoted, promoted}, // the status was lost in Reissue, and the rotation is resumed
		{rotation.Reissue, both, promoted},
		{rotation.Reissue, promoted, promoted},
		{rotation.DropOld, both, replaced}, // a copy of the Secret from TrustBoth was restored
		{rotation.DropOld, promoted, replaced},
		{rotation.DropOld, replaced, replaced},
	} {
		cluster := ownedtest.NewCluster(requested, func(c *v1alpha1.ApiServerCluster) {
			stage := &v1alpha1.Rotation{Stage: string(test.stage)}
			c.Status.Rotations = &v1alpha1.Rotations{Authorities: stage, ServiceAccountKeys: stage}
		})
		bundle, err := rotations.AdvanceAuthority(cluster, credentials.Set{
			Bundles: map[string]pki.Bundle{desired.ClientDomain: bundles[test.before]},
		}, desired.ClientDomain, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(bundle.Signer.Equal(oldAuthority), bundle.Next != nil,
			bundle.Next != nil && bundle.Next.Equal(oldAuthority), bundle.Previous, oldAuthority.Certificate,
		); got != test.want {
			t.Errorf("stage %q, authority %s: got %s, want %s", test.stage, test.before, got, test.want)
		}
		advanced, created, err := rotations.AdvanceKeys(cluster, keys[test.before])
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(string(advanced.Signer.Key) == string(oldKey.Key), advanced.Next != nil,
			advanced.Next != nil && string(advanced.Next.Key) == string(oldKey.Key), advanced.Previous, oldKey.Certificate,
		); got != test.want || created != (test.before == former && test.want == both) {
			t.Errorf("stage %q, keys %s: got %s, created %t, want %s", test.stage, test.before, got, created, test.want)
		}
	}
}
