package desired

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

// epoch returns the time at which the authorities of tests are created.
func epoch() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func authority(t *testing.T, name string) pki.Authority {
	t.Helper()
	created, err := pki.NewAuthority(name, pki.AuthorityLifetime, epoch())
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// TestAuthoritiesOfCertificates checks that each certificate has an authority of the cluster, and the Secret that users
// can provide an authority in.
func TestAuthoritiesOfCertificates(t *testing.T) {
	theirs := func(s *v1alpha1.ApiServerClusterSpec) {
		s.Certificates.Authorities.ServingSecretRef = &corev1.LocalObjectReference{Name: "their-serving-ca"}
		s.Certificates.Authorities.ClientSecretRef = &corev1.LocalObjectReference{Name: "their-client-ca"}
	}
	for name, c := range map[string]struct {
		edit    func(*v1alpha1.ApiServerClusterSpec)
		domains string
		users   string // domains whose authorities are in Secrets of the user
	}{
		"default":        {nil, "serving-ca client-ca front-proxy-ca etcd-peer-ca etcd-client-ca", ""},
		"external etcd":  {external, "serving-ca client-ca front-proxy-ca", ""},
		"mode Extension": {extend, "serving-ca client-ca etcd-peer-ca etcd-client-ca", ""},
		"with companions": {
			joinable, "serving-ca client-ca front-proxy-ca etcd-peer-ca etcd-client-ca", "",
		},
		"authorities of the user": {
			theirs, "serving-ca client-ca front-proxy-ca etcd-peer-ca etcd-client-ca",
			"serving-ca from their-serving-ca, client-ca from their-client-ca",
		},
	} {
		cluster := demo(c.edit)
		domains := Domains(cluster)
		if got := strings.Join(domains, " "); got != c.domains {
			t.Errorf("%s: got domains %s, want %s", name, got, c.domains)
		}
		var users []string
		known := map[string]bool{}
		for _, domain := range domains {
			known[domain] = true
			if secret := UserAuthoritySecret(cluster, domain); secret != "" {
				users = append(users, domain+" from "+secret)
			}
		}
		if got := strings.Join(users, ", "); got != c.users {
			t.Errorf("%s: got authorities of the user %q, want %q", name, got, c.users)
		}
		for _, certificate := range Certificates(cluster, nil) {
			if !known[certificate.Domain] {
				t.Errorf("%s: %s is signed by %s, which does not exist", name, certificate.Secret, certificate.Domain)
			}
		}
	}
}

// TestKeyCreated checks that the age of a service-account key is read from its Secret. Secrets of earlier releases have
// no annotation.
func TestKeyCreated(t *testing.T) {
	created := epoch().In(time.FixedZone("", 3600)).Add(time.Hour)
	keys := ServiceAccountKeys(demo(nil), companionCredentials().Keys, created)
	if got := KeyCreated(keys); !got.Equal(created) {
		t.Errorf("got %s, want %s", got, created)
	}
	keys.CreationTimestamp = metav1.NewTime(epoch())
	for _, annotation := range []string{"", "yesterday"} {
		keys.Annotations[KeyCreatedAnnotation] = annotation
		if got := KeyCreated(keys); !got.Equal(epoch()) {
			t.Errorf("annotation %q: got %s, want the creation time of the Secret", annotation, got)
		}
	}
}

// TestAuthorityHash checks that only changes of authorities that etcd reads when it starts restart members.
func TestAuthorityHash(t *testing.T) {
	one, two := pki.Bundle{Signer: authority(t, "one")}, pki.Bundle{Signer: authority(t, "two")}
	next, err := one.Add(authority(t, "next"), epoch())
	if err != nil {
		t.Fatal(err)
	}
	with := func(peers, clients pki.Bundle) map[string]pki.Bundle {
		return map[string]pki.Bundle{PeerDomain: peers, EtcdClientDomain: clients, ServingDomain: two}
	}
	cluster := demo(nil)
	before := AuthorityHash(cluster, with(one, one))
	for name, c := range map[string]struct {
		bundles map[string]pki.Bundle
		changed bool
	}{
		"authority of peers":                {with(two, one), true},
		"authority of clients":              {with(one, two), true},
		"successor of peers' authority":     {with(next, one), true},
		"authority of serving certificates": {map[string]pki.Bundle{PeerDomain: one, EtcdClientDomain: one}, false},
	} {
		if got := AuthorityHash(cluster, c.bundles); (got != before) != c.changed {
			t.Errorf("%s: got %s, before %s", name, got, before)
		}
	}
	// A promotion only reverses the order of the certificates. It must not restart members again.
	if AuthorityHash(cluster, with(next, one)) != AuthorityHash(cluster, with(next.Promote(), one)) {
		t.Error("the order of the certificates changes the hash")
	}
	if got := AuthorityHash(demo(external), with(one, one)); got != "" {
		t.Errorf("got %q with an external etcd", got)
	}
}

// TestAdminKubeconfig checks that clients can connect with the kubeconfig, and that its Secret verifies the leaf.
func TestAdminKubeconfig(t *testing.T) {
	cluster := demo(nil)
	clients := pki.Bundle{Signer: authority(t, "clients")}
	var leaf pki.Leaf
	for _, certificate := range Certificates(cluster, nil) {
		if certificate.Secret == AdminSecret {
			leaf = certificate.Leaf
		}
	}
	admin, err := clients.Issue(leaf, epoch())
	if err != nil {
		t.Fatal(err)
	}
	published, err := AdminKubeconfig(cluster, Endpoint(cluster), []byte("CA"), admin)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(published.Data[KubeconfigKey])
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://demo.ns.svc:6443" || string(config.CAData) != "CA" ||
		string(config.CertData) != string(admin.Certificate) || string(config.KeyData) != string(admin.Key) {
		t.Errorf("got URL %s, authority %q, or another certificate", config.Host, config.CAData)
	}
	stored := LeafSecret(cluster, AdminSecret, admin, []byte("CA"))
	if pair := PairOf(stored); stored.Type != corev1.SecretTypeTLS || string(stored.Data[AuthorityKey]) != "CA" ||
		clients.Evaluate(pair, leaf, epoch()) != "" {
		t.Errorf("got Secret %s of type %s: %s", stored.Name, stored.Type, clients.Evaluate(pair, leaf, epoch()))
	}
}

func access() *v1alpha1.ApiServerKubeconfig {
	return &v1alpha1.ApiServerKubeconfig{
		ObjectMeta: metav1.ObjectMeta{Name: "ci", Namespace: "ns"},
		Spec: v1alpha1.ApiServerKubeconfigSpec{
			ClusterRef: corev1.LocalObjectReference{Name: "demo"}, User: "ci-bot", Groups: []string{"deployers"},
		},
	}
}

// TestKubeconfigSecret checks which changes lead to another certificate, and where the kubeconfig connects to.
func TestKubeconfigSecret(t *testing.T) {
	clients, cluster := pki.Bundle{Signer: authority(t, "clients")}, demo(nil)
	cluster.Status.Endpoint = "https://lb.example.org:6443"
	first, reason, err := KubeconfigSecret(access(), cluster, clients, []byte("CA"), &corev1.Secret{}, epoch())
	if err != nil || reason != "missing" {
		t.Fatalf("got %q, %v, want the reason missing", reason, err)
	}
	for name, c := range map[string]struct {
		edit   func(*v1alpha1.ApiServerKubeconfig)
		now    time.Time
		reason string // of another certificate; "": the certificate is kept
		server string
	}{
		"nothing": {func(*v1alpha1.ApiServerKubeconfig) {}, epoch(), "", "https://lb.example.org:6443"},
		"server": {
			func(k *v1alpha1.ApiServerKubeconfig) { k.Spec.Server = "https://vpn.example.org" }, epoch(), "",
			"https://vpn.example.org",
		},
		"user": {
			func(k *v1alpha1.ApiServerKubeconfig) { k.Spec.User = "cd-bot" }, epoch(), "the common name changed",
			"https://lb.example.org:6443",
		},
		"groups": {
			func(k *v1alpha1.ApiServerKubeconfig) { k.Spec.Groups = nil }, epoch(), "the organizations changed",
			"https://lb.example.org:6443",
		},
		"shorter validity": {
			func(k *v1alpha1.ApiServerKubeconfig) { k.Spec.Validity = &metav1.Duration{Duration: time.Minute} }, epoch(),
			"the lifetime was reduced", "https://lb.example.org:6443",
		},
		"time": {
			func(*v1alpha1.ApiServerKubeconfig) {}, epoch().Add(access().ValidityPeriod()), "renewal was due at",
			"https://lb.example.org:6443",
		},
	} {
		kubeconfig := access()
		kubeconfig.Spec.TLSServerName = "demo.ns.svc"
		c.edit(kubeconfig)
		next, reason, err := KubeconfigSecret(kubeconfig, cluster, clients, []byte("CA"), first, c.now)
		if err != nil {
			t.Fatal(err)
		}
		kept := string(next.Data[corev1.TLSCertKey]) == string(first.Data[corev1.TLSCertKey])
		if !strings.HasPrefix(reason, c.reason) || kept != (reason == "") || kept != (c.reason == "") {
			t.Errorf("change of %s: got the reason %q, certificate kept: %v, want %q", name, reason, kept, c.reason)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(next.Data[KubeconfigKey])
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != c.server || config.ServerName != "demo.ns.svc" ||
			string(config.CertData) != string(next.Data[corev1.TLSCertKey]) {
			t.Errorf("change of %s: got URL %s, verified for %s, or another certificate", name, config.Host, config.ServerName)
		}
	}
	if first.Name != "ci-kubeconfig" || first.Labels[ClusterLabel] != "demo" || first.Type != corev1.SecretTypeTLS {
		t.Errorf("got %+v", first.ObjectMeta)
	}
}

// TestKubeconfigCurrent checks that a rotation of the cluster's authorities waits for published kubeconfigs.
func TestKubeconfigCurrent(t *testing.T) {
	clients, cluster := pki.Bundle{Signer: authority(t, "clients")}, demo(nil)
	published, _, err := KubeconfigSecret(access(), cluster, clients, []byte("CA"), &corev1.Secret{}, epoch())
	if err != nil {
		t.Fatal(err)
	}
	successor, err := clients.Add(authority(t, "next"), epoch())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		trusted string
		clients pki.Bundle
		want    bool
	}{
		"unchanged":                        {"CA", clients, true},
		"other authority of servers":       {"CA 2", clients, false},
		"successor that does not sign yet": {"CA", successor, true},
		"other signer":                     {"CA", successor.Promote(), false},
		"other authority of clients":       {"CA", pki.Bundle{Signer: authority(t, "clients")}, false},
	} {
		if got := KubeconfigCurrent(published, []byte(c.trusted), c.clients); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if KubeconfigCurrent(&corev1.Secret{}, nil, clients) {
		t.Error("a Secret without a certificate is current")
	}
}
