package certificates

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// input returns the input of Ensure for the stored cluster, with its pods.
func input(h *ownedtest.Host, pods ...corev1.Pod) Input {
	return Input{
		State: &observed.State{Cluster: h.Cluster(), Pods: pods}, MayChange: true, Now: ownedtest.Now(),
		Service: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}, Endpoint: "https://demo.ns.svc:6443",
	}
}

// ensure executes Ensure, which must not fail.
func ensure(t *testing.T, h *ownedtest.Host, in Input) Result {
	t.Helper()
	result, err := Ensure(t.Context(), h.Objects, in)
	h.Must(err)
	return result
}

// issued returns a host on which all certificates of a cluster are issued.
func issued(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
	t.Helper()
	h := ownedtest.NewHost(t, ownedtest.NewCluster(changes...))
	ensure(t, h, input(h))
	h.Events()
	return h
}

// given returns a Secret with a user's certificate or authority.
func given(t *testing.T, name string, pair pki.Pair, authority []byte) *corev1.Secret {
	t.Helper()
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key, desired.AuthorityKey: authority,
	}}
}

// authorityFor returns a user's authority.
func authorityFor(t *testing.T, lifetime time.Duration) pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority("corporate", lifetime, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// mounting returns a pod that mounts Secrets.
func mounting(secrets ...string) corev1.Pod {
	projected := &corev1.ProjectedVolumeSource{}
	for _, name := range secrets {
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{
			Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		})
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: projected}}}},
	}
}

// TestIssue checks that a new cluster gets all authorities and certificates, and that nothing is written afterwards.
func TestIssue(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	result := ensure(t, h, input(h))
	c := result.Credentials
	for _, certificate := range desired.Certificates(h.Cluster(), []string{"10.0.0.1"}) {
		if reason := c.Bundles[certificate.Domain].Evaluate(
			c.Leaves[certificate.Secret], certificate.Leaf, ownedtest.Now(),
		); reason != "" {
			t.Errorf("certificate %s: %s", certificate.Secret, reason)
		}
	}
	if c.Keys.Check() != nil || !c.KeyCreated.Equal(ownedtest.Now()) ||
		c.ServerName != "demo.ns.svc" || len(c.Trusted) == 0 {
		t.Errorf("credentials %+v", c)
	}
	if secrets := len(c.Bundles) + len(c.Leaves); len(result.Expiries) != secrets || len(h.Names()) != secrets+1 {
		t.Errorf("%d expiries, objects %v", len(result.Expiries), h.Names())
	}
	h.Refuse = func(request string) error {
		if !strings.HasPrefix(request, "get") {
			t.Error(request)
		}
		return nil
	}
	ensure(t, h, input(h))
	later := input(h)
	later.MayChange, later.Now = false, ownedtest.Now().Add(100*365*24*time.Hour)
	if again := ensure(t, h, later); !slices.Equal(again.Expiries, result.Expiries) ||
		!bytes.Equal(again.Credentials.Keys.Signer.Key, c.Keys.Signer.Key) {
		t.Error("a cluster that may not be changed has other credentials")
	}
}

// TestUnchangeable checks that a cluster without certificates that may not be changed gets none.
func TestUnchangeable(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	in := input(h)
	in.MayChange = false
	if result := ensure(t, h, in); len(h.Names()) != 0 || len(result.Credentials.Leaves) != 0 {
		t.Errorf("objects %v", h.Names())
	}
}

// TestRenewal checks that certificates are issued again when they are due, and when the addresses of the Service
// change.
func TestRenewal(t *testing.T) {
	h := issued(t)
	in := input(h)
	in.Service.Spec.ClusterIP = "10.0.0.2"
	ensure(t, h, in)
	if events := h.Events(); len(events) != 1 || !strings.Contains(events[0], "demo-serving") {
		t.Errorf("another address: events %q", events)
	}
	in.Now = ownedtest.Now().Add(pki.LeafLifetime)
	ensure(t, h, in)
	if events := h.Events(); len(events) != len(desired.Certificates(h.Cluster(), nil)) {
		t.Errorf("expired certificates: events %q", events)
	}
}

// TestLostSecrets deletes or edits Secrets of a cluster whose replica mounts them, and checks which of them are lost,
// which are replaced in stages, and which are created again.
func TestLostSecrets(t *testing.T) {
	clientCA, keys := "demo-client-ca", "demo-service-account"
	for name, test := range map[string]struct {
		lose   func(t *testing.T, h *ownedtest.Host)
		change func(*v1alpha1.ApiServerCluster)
		lost   string // a part of the error; "": nothing is lost
		err    string
		event  string
	}{
		"authority": {
			lose:  func(t *testing.T, h *ownedtest.Host) { h.Delete(clientCA, &corev1.Secret{}) },
			event: "AuthorityKeyLost",
		},
		"authority in a later stage": {
			lose: func(t *testing.T, h *ownedtest.Host) {
				d := rotation.Decision{Next: rotation.Reissue}
				h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Authorities, d, ownedtest.Now()))
				h.Events()
				h.Delete(clientCA, &corev1.Secret{})
			},
			err: "the key in Secret demo-client-ca was lost", event: "TrustingNewAuthorities",
		},
		"authority and its certificates": {
			lose: loseClientDomain, lost: "secret demo-client-ca is missing",
		},
		"authority that may be replaced": {
			lose: loseClientDomain, change: func(c *v1alpha1.ApiServerCluster) {
				c.Annotations = map[string]string{v1alpha1.ReplaceSecretsAnnotation: clientCA}
			},
		},
		"edited authority": {
			lose: func(t *testing.T, h *ownedtest.Host) {
				ownedtest.Change(h, clientCA, &corev1.Secret{}, func(s *corev1.Secret) {
					s.Data[corev1.TLSCertKey] = []byte("nonsense")
				})
			},
			err: "secret demo-client-ca is invalid",
		},
		"another authority": {
			lose: func(t *testing.T, h *ownedtest.Host) {
				other := authorityFor(t, time.Hour*24*365)
				ownedtest.Change(h, clientCA, &corev1.Secret{}, func(s *corev1.Secret) {
					s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey] = other.Certificate, other.Key
				})
			},
			event: "AuthorityKeyLost",
		},
		"keys": {
			lose: func(t *testing.T, h *ownedtest.Host) { h.Delete(keys, &corev1.Secret{}) },
			lost: "secret demo-service-account is missing",
		},
		"unusable keys": {
			lose: func(t *testing.T, h *ownedtest.Host) {
				ownedtest.Change(h, keys, &corev1.Secret{}, func(s *corev1.Secret) {
					s.Data[desired.ServiceAccountPrivateKey] = []byte("nonsense")
				})
			},
			lost: "secret demo-service-account cannot be used",
		},
		"keys that may be replaced": {
			lose: func(t *testing.T, h *ownedtest.Host) { h.Delete(keys, &corev1.Secret{}) },
			change: func(c *v1alpha1.ApiServerCluster) {
				c.Annotations = map[string]string{v1alpha1.ReplaceSecretsAnnotation: keys}
			},
		},
		"certificate": {
			lose: func(t *testing.T, h *ownedtest.Host) { h.Delete("demo-admin", &corev1.Secret{}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := issued(t)
			before := h.Names()
			test.lose(t, h)
			if test.change != nil {
				ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, test.change)
			}
			result, err := Ensure(t.Context(), h.Objects, input(h, mounting(clientCA, keys)))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if (result.Lost == nil) != (test.lost == "") ||
				result.Lost != nil && !strings.Contains(result.Lost.Error(), test.lost) {
				t.Fatalf("lost: %v, want %q", result.Lost, test.lost)
			}
			if events := strings.Join(h.Events(), "\n"); !strings.Contains(events, test.event) ||
				test.event == "" && events != "" {
				t.Errorf("events %q, want %s", events, test.event)
			}
			if restored := slices.Equal(h.Names(), before); restored != (test.lost == "" && test.err == "") &&
				test.event == "" && !strings.Contains(name, "edited") && !strings.Contains(name, "unusable") {
				t.Errorf("objects %v", h.Names())
			}
			if h.Cluster().Annotations[v1alpha1.ReplaceSecretsAnnotation] != "" {
				t.Error("the permission to replace Secrets outlives the replacement")
			}
		})
	}
}

// loseClientDomain deletes the client authority, and everything that it has issued.
func loseClientDomain(_ *testing.T, h *ownedtest.Host) {
	h.Delete("demo-client-ca", &corev1.Secret{})
	for _, certificate := range desired.Certificates(h.Cluster(), nil) {
		if certificate.Domain == desired.ClientDomain {
			h.Delete(desired.SecretName(h.Cluster(), certificate.Secret), &corev1.Secret{})
		}
	}
}

// TestServingCertificateOfUser checks that the user's certificate is used while it is valid, that the one in use
// survives a broken Secret, and that the operator issues one as the last resort.
func TestServingCertificateOfUser(t *testing.T) {
	authority := authorityFor(t, 2*365*24*time.Hour)
	pair, err :=
		authority.Issue(pki.Leaf{CommonName: "demo.ns.svc", DNSNames: []string{"demo.ns.svc"}, Server: true,
			Lifetime: 48 * time.Hour}, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := issued(t)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Certificates.Serving.SecretRef = &corev1.LocalObjectReference{Name: "own"}
	})
	result := ensure(t, h, input(h))
	if result.UserCertificateErr == nil || result.Credentials.ServerName != "demo.ns.svc" {
		t.Errorf("without the Secret: %v", result.UserCertificateErr)
	}
	h.CreateAll(given(t, "own", pair, authority.Certificate))
	used := func(situation string, in Input, user bool, problem string) {
		t.Helper()
		result := ensure(t, h, in)
		if got := bytes.Equal(result.Credentials.Leaves[desired.ServingSecret].Certificate, pair.Certificate); got != user {
			t.Errorf("%s: the user's certificate is used: %t", situation, got)
		}
		if problem == "" && result.UserCertificateErr != nil ||
			problem != "" && !strings.Contains(result.UserCertificateErr.Error(), problem) {
			t.Errorf("%s: %v, want %q", situation, result.UserCertificateErr, problem)
		}
	}
	used("given", input(h), true, "")
	if !bytes.Contains(ensure(t, h, input(h)).Credentials.Trusted, authority.Certificate) {
		t.Error("clients do not trust the user's authority")
	}
	ownedtest.Change(h, "own", &corev1.Secret{}, func(s *corev1.Secret) { s.Data[corev1.TLSCertKey] = []byte("nonsense") })
	used("edited", input(h), true, "secret own")
	later := input(h)
	later.Now = ownedtest.Now().Add(72 * time.Hour)
	used("expired", later, false, "secret own")
	h.Delete("demo-serving-ca", &corev1.Secret{})
	used("without the operator's authority", later, false, "secret own")
}

// TestPublicAuthority checks that clients use the authorities of their system if the user's Secret has no authority.
func TestPublicAuthority(t *testing.T) {
	pair, err := authorityFor(t,
		2*365*24*time.Hour).Issue(pki.Leaf{CommonName: "api.example.org", DNSNames: []string{"api.example.org"}, Server: true,
		Lifetime: 48 * time.Hour}, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := ownedtest.NewHost(t, given(t, "own", pair, nil), ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Certificates.Serving.SecretRef = &corev1.LocalObjectReference{Name: "own"}
	}))
	in := input(h)
	in.Endpoint = "https://api.example.org:6443"
	if c := ensure(t, h, in).Credentials; c.ServerName != "api.example.org" || len(c.Trusted) != 0 {
		t.Errorf("server name %s, trusted %q", c.ServerName, c.Trusted)
	}
	in.Endpoint = "https://%"
	if result := ensure(t, h, in); result.UserCertificateErr != nil {
		t.Errorf("without a host to verify: %v", result.UserCertificateErr)
	}
}

// TestAuthorityOfUser checks that a new cluster uses the user's authority, and that an invalid one is reported.
func TestAuthorityOfUser(t *testing.T) {
	authority := authorityFor(t, 365*24*time.Hour)
	named := func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Certificates.Authorities.ClientSecretRef = &corev1.LocalObjectReference{Name: "corporate"}
	}
	h := ownedtest.NewHost(t, ownedtest.NewCluster(named), given(t, "corporate", authority.Pair, nil))
	if c := ensure(t, h, input(h)).Credentials; !c.Bundles[desired.ClientDomain].Signer.Equal(authority) {
		t.Error("the user's authority is not used")
	}
	h.Delete("demo-client-ca", &corev1.Secret{}) // the user's Secret still has the key
	if c := ensure(t, h, input(h)).Credentials; !c.Bundles[desired.ClientDomain].Signer.Equal(authority) ||
		len(h.Events()) != 0 {
		t.Error("the user's authority is replaced")
	}
	for _, problem := range []string{"secret corporate", "secret corporate does not exist"} {
		if problem == "secret corporate" {
			ownedtest.Change(h, "corporate", &corev1.Secret{}, func(s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = nil })
		} else {
			h.Delete("corporate", &corev1.Secret{})
		}
		result := ensure(t, h, input(h))
		if result.UserCertificateErr == nil || !strings.Contains(result.UserCertificateErr.Error(), problem) ||
			!result.Credentials.Bundles[desired.ClientDomain].Signer.Equal(authority) {
			t.Errorf("%v, want %s", result.UserCertificateErr, problem)
		}
	}
}

// TestStagesOfKeys checks that the service-account keys follow the stage in the status, and that extension clusters
// have none.
func TestStagesOfKeys(t *testing.T) {
	h := issued(t)
	first := ensure(t, h, input(h)).Credentials.Keys.Signer
	for _, stage := range []rotation.Stage{rotation.TrustBoth, rotation.Reissue, rotation.DropOld} {
		d := rotation.Decision{Next: stage}
		h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.ServiceAccountKeys, d, ownedtest.Now()))
		for range 2 {
			keys := ensure(t, h, input(h)).Credentials.Keys
			signsWithFirst := bytes.Equal(keys.Signer.Key, first.Key)
			trustsFirst := bytes.Contains(keys.Verifying(), first.Certificate)
			if signsWithFirst != (stage == rotation.TrustBoth) || trustsFirst != (stage != rotation.DropOld) {
				t.Errorf("stage %s: signs with the first key: %t, trusts it: %t", stage, signsWithFirst, trustsFirst)
			}
		}
	}
	extension := issued(t, func(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension })
	if extension.Exists("demo-service-account", &corev1.Secret{}) {
		t.Error("an extension cluster has service-account keys")
	}
}

// TestKeysOfRestore checks that no keys are created while a backup with the keys is being restored.
func TestKeysOfRestore(t *testing.T) {
	h := issued(t, func(c *v1alpha1.ApiServerCluster) { c.Spec.Restore = &v1alpha1.Restore{} })
	if h.Exists("demo-service-account", &corev1.Secret{}) {
		t.Error("keys were created")
	}
}

// TestKubeconfig checks that the administrator's kubeconfig is published, and that pods are annotated with the hash of
// the certificates that they reload, except for terminating ones.
func TestKubeconfig(t *testing.T) {
	h := issued(t)
	c := ensure(t, h, input(h)).Credentials
	h.Must(EnsureKubeconfig(t.Context(), h.Objects, h.Cluster(), "https://demo.ns.svc:6443", c))
	if !slices.ContainsFunc(h.Names(), func(name string) bool { return strings.Contains(name, "kubeconfig") }) {
		t.Errorf("objects %v", h.Names())
	}
	pod, terminating := mounting(), mounting()
	terminating.Name, terminating.Finalizers, terminating.DeletionTimestamp =
		"demo-1", []string{"f/f"}, &metav1.Time{Time: ownedtest.Now()}
	h.CreateAll(&pod)
	state := &observed.State{Cluster: h.Cluster(), Pods: []corev1.Pod{pod, terminating}}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if err := AnnotatePods(t.Context(), h.Objects, state, "hash"); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed patch: %v", err)
	}
	h.Refuse = nil
	h.Must(AnnotatePods(t.Context(), h.Objects, state, "hash"))
	stored := &corev1.Pod{}
	if h.Read("demo-0", stored); stored.Annotations[desired.CertificateHashAnnotation] != "hash" {
		t.Errorf("annotations %v", stored.Annotations)
	}
	h.Refuse = func(request string) error { return errors.New(request) }
	h.Must(AnnotatePods(t.Context(), h.Objects, &observed.State{Pods: []corev1.Pod{*stored}}, "hash"))
}

// TestFailedRequests lets each request fail with which a new cluster gets its certificates.
func TestFailedRequests(t *testing.T) {
	step := func(h *ownedtest.Host) error {
		_, err := Ensure(t.Context(), h.Objects, input(h))
		return err
	}
	external := func(c *v1alpha1.ApiServerCluster) { // has fewer certificates
		c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"}}
		c.Annotations = map[string]string{v1alpha1.ReplaceSecretsAnnotation: "demo-admin"}
		c.Spec.Certificates.Serving.SecretRef = &corev1.LocalObjectReference{Name: "own"}
		c.Spec.Certificates.Authorities.ClientSecretRef = &corev1.LocalObjectReference{Name: "own"}
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		return ownedtest.NewHost(t, ownedtest.NewCluster(external))
	}, step)
}
