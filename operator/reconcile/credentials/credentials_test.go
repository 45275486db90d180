package credentials

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
)

// issued returns the credentials of a cluster with one authority.
func issued(t *testing.T) Set {
	t.Helper()
	now := time.Now()
	authority, err := pki.NewAuthority("demo", 24*time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	s := Set{
		Bundles: map[string]pki.Bundle{
			desired.ClientDomain: {Signer: authority}, desired.EtcdClientDomain: {Signer: authority},
		},
		Leaves: map[string]pki.Pair{}, Trusted: authority.Certificate, ServerName: "demo.ns.svc",
	}
	for _, name := range []string{desired.ServingSecret, desired.AdminSecret, desired.OperatorEtcdSecret} {
		if s.Leaves[name], err = authority.Issue(
			pki.Leaf{CommonName: name, Client: true, Lifetime: time.Hour}, now,
		); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func cluster() *v1alpha1.ApiServerCluster {
	return &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}}
}

// TestHash checks that the hash of the mounted files changes with each file that pods reload.
func TestHash(t *testing.T) {
	s := issued(t)
	first := s.MountedHash(cluster(), desired.Configuration{})
	if first != s.Hash() {
		t.Error("a cluster without files has another hash than its certificates")
	}
	s.Leaves[desired.ServingSecret] = s.Leaves[desired.AdminSecret]
	reissued := s.MountedHash(cluster(), desired.Configuration{})
	audited := cluster()
	audited.Spec.Audit = &v1alpha1.Audit{
		ConfigurationFiles: v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: "a"}},
	}
	audited.Spec.Authentication = &v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: "a"}}
	files := desired.Configuration{Files: map[string][]byte{desired.FileKey("authentication", "config.yaml"): []byte("a")}}
	if reissued == first || s.MountedHash(audited, files) == reissued {
		t.Error("the hash does not change")
	}
}

// TestClients checks the configurations of clients for API servers: the operator trusts the serving certificate itself,
// and only ready replicas are used.
func TestClients(t *testing.T) {
	s := issued(t)
	state := &observed.State{Cluster: cluster(), Pods: []corev1.Pod{{}}}
	if s.Replica(state) != nil {
		t.Error("a pod that is not ready is used")
	}
	state.Pods = append(state.Pods, corev1.Pod{Status: corev1.PodStatus{
		PodIP: "192.0.2.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}})
	for name, config := range map[string]struct{ host, server string }{
		"hosted":  {s.Hosted(state).Host, s.Hosted(state).ServerName},
		"replica": {s.Replica(state).Host, s.Replica(state).ServerName},
	} {
		if config.host != "https://192.0.2.1:6443" || config.server != "demo.ns.svc" {
			t.Errorf("%s: %+v", name, config)
		}
	}
	if !strings.Contains(string(s.Hosted(state).CAData), string(s.Leaves[desired.ServingSecret].Certificate)) {
		t.Error("the serving certificate is not trusted")
	}
	if s.Replica(state).Timeout <= s.Hosted(state).Timeout {
		t.Error("rewrites have no longer timeout than other requests")
	}
	if etcd := s.Etcd(cluster()); etcd.ServerName != desired.MembersDomain(cluster()) || len(etcd.Key) == 0 {
		t.Errorf("etcd: %+v", etcd)
	}
}

// TestCompanions checks that companions trust the serving certificate itself if a public authority has issued it.
func TestCompanions(t *testing.T) {
	s := issued(t)
	if string(s.Companions().Trusted) != string(s.Trusted) {
		t.Error("companions do not trust the authority")
	}
	s.Trusted = nil
	if string(s.Companions().Trusted) != string(s.Leaves[desired.ServingSecret].Certificate) {
		t.Error("companions do not trust the certificate")
	}
}

// TestProbe checks which connections a probe of replicas has.
func TestProbe(t *testing.T) {
	s, external, extension := issued(t), cluster(), cluster()
	external.Spec.Etcd.External = &v1alpha1.ExternalEtcd{}
	extension.Spec.Mode = v1alpha1.ModeExtension
	for name, test := range map[string]struct {
		cluster      *v1alpha1.ApiServerCluster
		etcd, tokens bool
	}{
		"cluster": {cluster(), true, true}, "external etcd": {external, false, true}, "extension": {extension, true, false},
	} {
		probe, err := s.Probe(test.cluster)
		if err != nil || (probe.Etcd != nil) != test.etcd || probe.Tokens != test.tokens ||
			probe.Serving.ServerName != "demo.ns.svc" {
			t.Errorf("%s: %+v, %v", name, probe, err)
		}
	}
	delete(s.Leaves, desired.AdminSecret)
	if _, err := s.Probe(cluster()); err == nil {
		t.Error("a probe without a client certificate")
	}
}

// TestLost checks that only the loss of a Secret that can be replaced is reported with the annotation that permits it.
func TestLost(t *testing.T) {
	for name, replaceable := range map[string]bool{"demo-client-ca": true, "demo-" + desired.EncryptionSecret: false} {
		text := Lost(name, "is missing", "replicas trust it").Error()
		if strings.Contains(text, v1alpha1.ReplaceSecretsAnnotation) != replaceable ||
			!strings.HasPrefix(text, "secret "+name+" is missing") {
			t.Error(text)
		}
	}
}
