package atrest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// encrypted returns a change of a cluster: it encrypts resources.
func encrypted(resources ...string) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) { c.Spec.Encryption = &v1alpha1.Encryption{Resources: resources} }
}

// external is a change of a cluster: its external etcd may contain objects.
func external(c *v1alpha1.ApiServerCluster) {
	c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"}}
	one := int32(1)
	c.Spec.Replicas = &one
}

// ensure executes EnsureKeys for the stored cluster.
func ensure(h *ownedtest.Host, now time.Time, pods ...corev1.Pod) (Keys, error) {
	return EnsureKeys(h.Context(), h.Objects, &observed.State{Cluster: h.Cluster(), Pods: pods}, now)
}

// replica is a ready API server that reports the hash of its EncryptionConfiguration.
type replica struct {
	pod           corev1.Pod
	credentials   credentials.Set
	configuration []byte
	stored        http.Handler // serves stored Secrets; nil: no resource exists
}

// newReplica starts a replica at a new address.
func newReplica(t *testing.T, address string) *replica {
	t.Helper()
	authority, err := pki.NewAuthority("demo", 24*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err :=
		authority.Issue(pki.Leaf{CommonName: "demo.ns.svc", DNSNames: []string{"demo.ns.svc"}, Server: true, Client: true,
			Lifetime: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{credentials: credentials.Set{
		Trusted: authority.Certificate, ServerName: "demo.ns.svc",
		Leaves: map[string]pki.Pair{desired.AdminSecret: leaf, desired.ServingSecret: leaf},
	}}
	r.pod = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}, Status: corev1.PodStatus{
		PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}}
	server := httptest.NewUnstartedServer(r)
	server.Listener.Close()
	if server.Listener, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort))); err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(leaf.Certificate, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return r
}

// ServeHTTP implements http.Handler.
func (r *replica) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch request.URL.Path {
	case "/metrics":
		if hash := observed.EncryptionHash(r.configuration); hash != "" {
			fmt.Fprintf(w, "apiserver_encryption_config_controller_last_config_info{apiserver_id_hash=\"x\",hash=%q} 1\n", hash)
		}
	case "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case "/api/v1":
		resources := ""
		if r.stored != nil {
			resources = `{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["list","patch"]}`
		}
		fmt.Fprintf(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[%s]}`, resources)
	case "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	default:
		if r.stored == nil {
			http.NotFound(w, request)
			return
		}
		r.stored.ServeHTTP(w, request)
	}
}

// TestNewCluster checks that a new cluster encrypts from the start, that it keeps its key, and that a cluster without
// spec.encryption has no Secret.
func TestNewCluster(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets")))
	first, err := ensure(h, ownedtest.Now())
	h.Must(err)
	unchanged, err := ensure(h, ownedtest.Now().Add(time.Hour))
	h.Must(err)
	if len(first.Configuration) == 0 || string(first.Configuration) != string(unchanged.Configuration) ||
		first.State.Changing() {
		t.Errorf("%s, then %s", first.Configuration, unchanged.Configuration)
	}
	plain := ownedtest.NewHost(t, ownedtest.NewCluster())
	if keys, err := ensure(plain, ownedtest.Now()); err != nil || len(keys.Configuration) != 0 || len(plain.Names()) != 0 {
		t.Errorf("%+v, %v", keys, err)
	}
}

// TestChange follows a change of the encryption: all replicas can read with the new configuration before any replica
// writes with it, and the former key is dropped after the stored objects are rewritten.
func TestChange(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets")))
	r := newReplica(t, "127.201.17.1")
	var entered []string
	steps, now := Steps{Objects: h.Objects, Clock: clocktesting.NewFakeClock(ownedtest.Now())}, ownedtest.Now()
	reconcile := func(loads bool, pods ...corev1.Pod) Result {
		t.Helper()
		keys, err := ensure(h, now, pods...)
		h.Must(err)
		if loads {
			r.configuration = keys.Configuration
		}
		result, err := steps.Plan(t.Context(), Input{
			State: &observed.State{Cluster: h.Cluster(), Pods: pods}, Credentials: r.credentials, Encryption: keys.State,
			Configuration: keys.Configuration, Now: now,
		})
		h.Must(err)
		if stage, _ := stages.Encryption.Stage(h.Cluster()); result.Entered {
			entered = append(entered, string(stage))
		}
		return result
	}
	reconcile(false)
	if result := reconcile(false); len(result.Rotations) != 1 ||
		!strings.Contains(result.Rotations[0].Message, "some have no pod") {
		t.Errorf("without a pod: %+v", result)
	}
	unreachable := r.pod
	unreachable.Status.PodIP = ""
	if result := reconcile(false, unreachable); !strings.Contains(result.Rotations[0].Message, "no address") {
		t.Errorf("an unreachable replica: %+v", result)
	}
	if result := reconcile(false, r.pod); !strings.Contains(result.Rotations[0].Message, "encryption configuration") {
		t.Errorf("a replica with the former configuration: %+v", result)
	}
	for range 8 {
		now = now.Add(time.Hour)
		reconcile(true, r.pod)
	}
	if want := []string{"TrustBoth", "Reissue", "DropOld", ""}; !slices.Equal(entered, want) {
		t.Errorf("stages %q, want %q", entered, want)
	}
	if keys, err := ensure(h, now, r.pod); err != nil || keys.State.Changing() ||
		!slices.Equal(keys.State.Current.Resources, []string{"secrets"}) {
		t.Errorf("%+v, %v", keys.State, err)
	}
}

// beginRotation returns a hosting cluster whose cluster has entered the first stage of a rotation, and its keys.
func beginRotation(t *testing.T) (*ownedtest.Host, Keys) {
	t.Helper()
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets")))
	h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Encryption,
		rotation.Decision{Next: rotation.TrustBoth}, ownedtest.Now()))
	keys, err := ensure(h, ownedtest.Now())
	h.Must(err)
	return h, keys
}

// TestRewriteWithoutReplica checks that the last stage waits for a ready replica that rewrites the stored objects, and
// that the error of a replica is returned.
func TestRewriteWithoutReplica(t *testing.T) {
	h, keys := beginRotation(t)
	steps := Steps{Objects: h.Objects, Clock: clocktesting.NewFakeClock(ownedtest.Now())}
	in := Input{State: &observed.State{Cluster: h.Cluster()}, Encryption: keys.State, Now: ownedtest.Now()}
	if waiting, err := steps.rewrite(t.Context(), in); err != nil || !strings.Contains(waiting, "ready replica") {
		t.Errorf("%q, %v", waiting, err)
	}
	in.State.Pods = []corev1.Pod{{Status: corev1.PodStatus{
		PodIP: "127.201.17.2", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}}}
	if _, err := steps.rewrite(t.Context(), in); err == nil {
		t.Error("a replica that does not listen has rewritten objects")
	}
}

// TestPlanWithoutChange checks for which clusters nothing is planned.
func TestPlanWithoutChange(t *testing.T) {
	hibernated := int32(0)
	for name, cluster := range map[string]*v1alpha1.ApiServerCluster{
		"new": ownedtest.NewCluster(encrypted("secrets")),
		"not bootstrapped": ownedtest.NewCluster(encrypted("secrets"), func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Restore = &v1alpha1.Restore{}
		}),
		"hibernated": ownedtest.NewCluster(ownedtest.Bootstrapped, encrypted("secrets"),
			func(c *v1alpha1.ApiServerCluster) { c.Spec.Replicas = &hibernated }),
		"not encrypted": ownedtest.NewCluster(ownedtest.Bootstrapped),
	} {
		h := ownedtest.NewHost(t, cluster)
		h.Refuse = func(request string) error { return errors.New(request) }
		result, err := Steps{Objects: h.Objects}.Plan(t.Context(), Input{
			State: &observed.State{Cluster: cluster}, Now: ownedtest.Now(),
		})
		if err != nil || result.Entered || len(result.Rotations) != 0 {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
}

// TestLostKeys checks when keys are lost: replicas use a configuration, but the Secret of its keys is gone or lacks
// them.
func TestLostKeys(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets")))
	keys, err := ensure(h, ownedtest.Now())
	h.Must(err)
	cluster := h.Cluster()
	files := desired.Configuration{Encryption: keys.Configuration}.Secret(cluster, nil, nil)
	h.Must(h.Create(t.Context(), cluster, files))
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, ownedtest.Bootstrapped)
	secret, saved := "demo-"+desired.EncryptionSecret, &corev1.Secret{}
	h.Read(secret, saved)
	for name, test := range map[string]struct {
		data map[string][]byte // nil: the Secret is deleted
		lost string
		err  string
	}{
		"complete":   {saved.Data, "", ""},
		"missing":    {nil, "is missing", ""},
		"empty":      {map[string][]byte{}, "is missing", ""},
		"unreadable": {map[string][]byte{desired.EncryptionStateKey: []byte("{")}, "", "unexpected"},
		"another key": {map[string][]byte{
			desired.EncryptionStateKey: []byte(strings.ReplaceAll(string(saved.Data[desired.EncryptionStateKey]),
				keys.State.Current.Provider.Name, "another")),
		}, "lacks the keys", ""},
		"unreadable retired keys": {map[string][]byte{
			desired.EncryptionStateKey: saved.Data[desired.EncryptionStateKey], desired.RetiredKeysKey: []byte("{"),
		}, "", "unexpected"},
	} {
		t.Run(name, func(t *testing.T) {
			_ = h.API.Delete(t.Context(), saved.DeepCopy())
			if test.data != nil {
				stored := saved.DeepCopy()
				stored.ResourceVersion, stored.Data = "", test.data
				h.CreateAll(stored)
			}
			keys, err := ensure(h, ownedtest.Now())
			if (err != nil) != (test.err != "") || (keys.Lost != nil) != (test.lost != "") ||
				keys.Lost != nil && !strings.Contains(keys.Lost.Error(), test.lost) {
				t.Errorf("lost: %v, %v", keys.Lost, err)
			}
		})
	}
}

// TestLostKeysWithoutPods checks that the loss of the keys is detected while the cluster has no pods, such as a
// hibernated one: the stored configuration, which has the only copy of the keys, must not be replaced by one without
// them.
func TestLostKeysWithoutPods(t *testing.T) {
	reference := ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets")))
	keys, err := ensure(reference, ownedtest.Now())
	reference.Must(err)
	mounting := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "demo-0", Labels: desired.Labels(reference.Cluster())}}
	mounting.Spec.Volumes = []corev1.Volume{{Name: "configuration", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "demo-" + desired.ConfigurationSecret},
			Items:                []corev1.KeyToPath{{Key: "encryption.config.yaml"}},
		}}}},
	}}}
	plain := func(*v1alpha1.ApiServerCluster) {}
	decrypted := []byte(`{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": [{
		"resources": ["secrets"], "providers": [{"identity": {}}, {"secretbox": {"keys": [{"name": "former", "secret":
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}]}}]}]}`)
	for name, test := range map[string]struct {
		change     func(*v1alpha1.ApiServerCluster)
		configured []byte // the stored configuration
		pods       []corev1.Pod
		lost       bool
	}{
		"encrypted":                     {encrypted("secrets"), keys.Configuration, nil, true},
		"spec.encryption was removed":   {plain, keys.Configuration, nil, true},
		"decrypted":                     {plain, decrypted, nil, false},
		"a pod with the keys":           {plain, nil, []corev1.Pod{mounting}, true},
		"encryption was just requested": {encrypted("secrets"), nil, nil, false},
		"never encrypted":               {plain, nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := ownedtest.NewHost(t, ownedtest.NewCluster(ownedtest.Bootstrapped, test.change))
			if test.configured != nil {
				files := desired.Configuration{Encryption: test.configured}.Secret(h.Cluster(), nil, nil)
				h.Must(h.Create(t.Context(), h.Cluster(), files))
			}
			got, err := ensure(h, ownedtest.Now(), test.pods...)
			h.Must(err)
			if (got.Lost != nil) != test.lost || test.lost && !strings.Contains(got.Lost.Error(), "is missing") {
				t.Errorf("lost: %v", got.Lost)
			}
			if h.Exists("demo-"+desired.EncryptionSecret, &corev1.Secret{}) {
				t.Error("the Secret of the keys was created again")
			}
		})
	}
}

// TestDecryption checks that resources that are no longer in the spec stay encrypted until the user confirms that.
func TestDecryption(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets", "configmaps")))
	_, err := ensure(h, ownedtest.Now())
	h.Must(err)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		ownedtest.Bootstrapped(c)
		c.Spec.Encryption.Resources = []string{"secrets"}
	})
	keys, err := ensure(h, ownedtest.Now())
	h.Must(err)
	if !slices.Equal(keys.Undecryptable, []string{"configmaps"}) {
		t.Errorf("undecryptable %v", keys.Undecryptable)
	}
	cluster := h.Cluster()
	cluster.Annotations = map[string]string{v1alpha1.DecryptAnnotation: "configmaps"}
	if reason, _ := due(cluster, keys.State, ownedtest.Now()); !strings.Contains(reason, "configmaps are decrypted") {
		t.Errorf("due: %q", reason)
	}
}

// TestKeyDue checks when a key is replaced because of its age or a request.
func TestKeyDue(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets")))
	keys, err := ensure(h, ownedtest.Now())
	h.Must(err)
	for name, test := range map[string]struct {
		keys v1alpha1.EncryptionKeys
		due  bool
	}{
		"no limit":  {v1alpha1.EncryptionKeys{}, false},
		"old":       {v1alpha1.EncryptionKeys{MaxAge: &metav1.Duration{Duration: time.Minute}}, true},
		"young":     {v1alpha1.EncryptionKeys{MaxAge: &metav1.Duration{Duration: 2 * time.Hour}}, false},
		"requested": {v1alpha1.EncryptionKeys{RotateBefore: &metav1.Time{Time: ownedtest.Now().Add(time.Minute)}}, true},
	} {
		cluster := h.Cluster()
		cluster.Spec.Encryption.Keys = test.keys
		if reason, _ := due(cluster, keys.State, ownedtest.Now().Add(time.Hour)); (reason != "") != test.due {
			t.Errorf("%s: %q", name, reason)
		}
		// A KMS plugin replaces its keys itself.
		cluster.Spec.Encryption.Provider = v1alpha1.KMSv2
		cluster.Spec.Encryption.KMS = &v1alpha1.KMS{Name: "vault", Endpoint: "unix:///run/kms/vault.sock"}
		plugin := encryption.State{Current: desired.EncryptionScheme(cluster)}
		plugin.Current.Created = ownedtest.Now()
		if reason, times := due(cluster, plugin, ownedtest.Now().Add(time.Hour)); reason != "" || len(times) > 0 {
			t.Errorf("%s, of a KMS plugin: %q at %v", name, reason, times)
		}
	}
}

// TestFailedRequests lets each request fail with which keys are created and dropped.
func TestFailedRequests(t *testing.T) {
	do := func(h *ownedtest.Host) error {
		_, err := ensure(h, ownedtest.Now())
		return err
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		return ownedtest.NewHost(t, ownedtest.NewCluster(encrypted("secrets")))
	}, do)
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets"), func(c *v1alpha1.ApiServerCluster) {
			c.Annotations = map[string]string{v1alpha1.DecryptAnnotation: "x"}
		}))
		for _, stage := range []rotation.Stage{rotation.TrustBoth, rotation.Reissue, rotation.DropOld} {
			h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Encryption,
				rotation.Decision{Next: stage}, ownedtest.Now()))
			if stage != rotation.DropOld {
				h.Must(do(h))
			}
		}
		return h
	}, do)
}
