package rotations_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/certificates"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/rotations"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// requested is a change of a cluster: the replacement of everything that was created until now is requested.
func requested(c *v1alpha1.ApiServerCluster) {
	at := &metav1.Time{Time: ownedtest.Now().Add(time.Minute)}
	c.Spec.Certificates.Authorities.RotateBefore, c.Spec.Certificates.ServiceAccountKeys.RotateBefore = at, at
}

// external is a change of a cluster: it has no etcd members.
func external(c *v1alpha1.ApiServerCluster) {
	c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"}}
}

// extension is a change of a cluster: it extends the API of its host.
func extension(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension }

// reconcile issues the certificates of the present stage, and plans the next one.
func reconcile(
	t *testing.T, h *ownedtest.Host, now time.Time, pods ...corev1.Pod,
) (credentials.Set, stages.Result, error) {
	t.Helper()
	state := &observed.State{Cluster: h.Cluster(), Pods: pods}
	issued, err := certificates.Ensure(t.Context(), h.Objects, certificates.Input{State: state, MayChange: true, Now: now})
	h.Must(err)
	result, err := rotations.Plan(t.Context(), h.Objects, rotations.PlanInput{
		State: state, Credentials: issued.Credentials, Now: now,
	})
	return issued.Credentials, result, err
}

// stagesOf returns the stages of authorities and keys in the status.
func stagesOf(h *ownedtest.Host) string {
	authorities, _ := stages.Authorities.Stage(h.Cluster())
	keys, _ := stages.ServiceAccountKeys.Stage(h.Cluster())
	return string(authorities) + "/" + string(keys)
}

// TestRotation follows a rotation without replicas: each stage ends when its time is over, the Secrets follow in the
// next reconciliation, and in the end nothing is left of the former credentials.
func TestRotation(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external))
	first, _, err := reconcile(t, h, ownedtest.Now())
	h.Must(err)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, requested)
	var seen []string
	now := ownedtest.Now()
	for range 100 {
		now = now.Add(30 * 24 * time.Hour)
		_, result, err := reconcile(t, h, now)
		h.Must(err)
		if stage := stagesOf(h); len(seen) == 0 || seen[len(seen)-1] != stage {
			seen = append(seen, stage)
			if !result.Entered {
				t.Errorf("stage %s was not announced", stage)
			}
		}
		if stagesOf(h) == "/" {
			break
		}
	}
	last, _, err := reconcile(t, h, now)
	h.Must(err)
	if seen[0] != "TrustBoth/TrustBoth" || seen[len(seen)-1] != "/" || len(seen) < 4 {
		t.Errorf("stages %v", seen)
	}
	before, after := first.Bundles[desired.ClientDomain], last.Bundles[desired.ClientDomain]
	if after.Signer.Equal(before.Signer) || after.Signer.Contains(before.Trusted()) ||
		before.Signer.Contains(after.Trusted()) {
		t.Error("the authority was not replaced")
	}
	if strings.Contains(string(last.Keys.Verifying()), string(first.Keys.Signer.Certificate)) {
		t.Error("the former key is still accepted")
	}
}

// TestNotDue checks what prevents a rotation, and when it becomes due.
func TestNotDue(t *testing.T) {
	for name, test := range map[string]struct {
		changes      []func(*v1alpha1.ApiServerCluster)
		stages       string
		due          bool
		bootstrapped bool
	}{
		"etcd not bootstrapped": {[]func(*v1alpha1.ApiServerCluster){requested}, "/", false, false},
		"not requested":         {[]func(*v1alpha1.ApiServerCluster){external}, "/", true, false},
		"requested later": {[]func(*v1alpha1.ApiServerCluster){external, func(c *v1alpha1.ApiServerCluster) {
			requested(c)
			c.Spec.Certificates.Authorities.RotateBefore = &metav1.Time{Time: ownedtest.Now().Add(2 * time.Hour)}
			c.Spec.Certificates.ServiceAccountKeys.RotateBefore = c.Spec.Certificates.Authorities.RotateBefore
		}}, "/", true, false},
		"old keys": {[]func(*v1alpha1.ApiServerCluster){external, func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Certificates.ServiceAccountKeys.MaxAge = &metav1.Duration{Duration: time.Hour}
		}}, "/TrustBoth", true, false},
		"bootstrapped":      {[]func(*v1alpha1.ApiServerCluster){requested}, "TrustBoth/TrustBoth", true, true},
		"keys of extension": {[]func(*v1alpha1.ApiServerCluster){external, extension, requested}, "TrustBoth/", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := ownedtest.NewHost(t, ownedtest.NewCluster(test.changes...))
			_, _, err := reconcile(t, h, ownedtest.Now())
			h.Must(err)
			if test.bootstrapped {
				ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, ownedtest.Bootstrapped)
			}
			_, result, err := reconcile(t, h, ownedtest.Now().Add(time.Hour))
			h.Must(err)
			if got := stagesOf(h); got != test.stages || (len(result.Due) > 0) != test.due {
				t.Errorf("stages %s, due %v", got, result.Due)
			}
		})
	}
}

// TestAuthorityOfUser checks that an authority from a user's Secret is replaced only after the user has stored another
// authority in the Secret.
func TestAuthorityOfUser(t *testing.T) {
	replaceUserAuthority := func(h *ownedtest.Host) {
		authority, err := pki.NewAuthority("corporate", 365*24*time.Hour, ownedtest.Now())
		h.Must(err)
		_ = h.API.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "corporate"}})
		h.CreateAll(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "corporate"}, Data: map[string][]byte{
			corev1.TLSCertKey: authority.Certificate, corev1.TLSPrivateKeyKey: authority.Key,
		}})
	}
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Certificates.Authorities.ClientSecretRef = &corev1.LocalObjectReference{Name: "corporate"}
	}))
	replaceUserAuthority(h)
	_, _, err := reconcile(t, h, ownedtest.Now())
	h.Must(err)
	h.Delete("corporate", &corev1.Secret{})
	if _, _, err = reconcile(t, h, ownedtest.Now()); err != nil || stagesOf(h) != "/" {
		t.Errorf("without the user's Secret: stages %s, %v", stagesOf(h), err)
	}
	replaceUserAuthority(h)
	_, _, err = reconcile(t, h, ownedtest.Now())
	h.Must(err)
	if got := stagesOf(h); got != "TrustBoth/" {
		t.Errorf("another authority: stages %s", got)
	}
	c, _, err := reconcile(t, h, ownedtest.Now())
	h.Must(err)
	if bundle := c.Bundles[desired.ClientDomain]; bundle.Next == nil ||
		!bundle.Next.Equal(c.UserAuthorities[desired.ClientDomain]) {
		t.Error("the user's authority is not the next one")
	}
}

// TestHolders checks for whom a rotation waits: replicas that cannot be probed, kubeconfigs, companions and APIServices
// with former authorities.
func TestHolders(t *testing.T) {
	cluster := ownedtest.NewCluster(external, requested, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Companions.KubeScheduler = &v1alpha1.Companion{Image: "scheduler"}
	})
	kubeconfig := func(name, of string) *v1alpha1.ApiServerKubeconfig {
		k := &v1alpha1.ApiServerKubeconfig{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "k"}}
		k.Spec.ClusterRef.Name = of
		return k
	}
	published := func(k *v1alpha1.ApiServerKubeconfig) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: desired.KubeconfigSecretName(k),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(k, v1alpha1.GroupVersion.WithKind("ApiServerKubeconfig")),
			},
		}}
	}
	own, others, pending := kubeconfig("own", "demo"), kubeconfig("others", "other"), kubeconfig("pending", "demo")
	deleted := kubeconfig("deleted", "demo")
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: ownedtest.Now()}, []string{"example.org/wait"}
	h := ownedtest.NewHost(t, cluster, own, published(own), others, published(others), pending,
		deleted, published(deleted))
	_, _, err := reconcile(t, h, ownedtest.Now())
	h.Must(err)
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"}}
	later := ownedtest.Now().Add(time.Hour)
	_, _, err = reconcile(t, h, later)
	h.Must(err)
	_, result, err := reconcile(t, h, later, pod)
	h.Must(err)
	if waits := result.Rotations[0].Message; !strings.Contains(waits, "demo-0") || !result.Waiting {
		t.Errorf("a replica without an address: %+v", result)
	}
	_, result, err = reconcile(t, h, later)
	h.Must(err)
	if waits := result.Rotations[0].Message; !strings.Contains(waits, desired.KubeconfigSecretName(own)) ||
		strings.Contains(waits, "others") || strings.Contains(waits, "pending") {
		t.Errorf("kubeconfigs: %+v", result.Rotations)
	}
}

// TestHost checks that the rotation of an extension cluster waits for the APIServices in its host.
func TestHost(t *testing.T) {
	cluster := ownedtest.NewCluster(external, extension, requested)
	service := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.example.org", Labels: desired.ExtensionSelector(cluster)},
	}
	h := ownedtest.NewHost(t, cluster, service)
	var result stages.Result
	for _, after := range []time.Duration{0, time.Hour, time.Hour} {
		var err error
		_, result, err = reconcile(t, h, ownedtest.Now().Add(after))
		h.Must(err)
	}
	if waits := result.Rotations[0].Message; !strings.Contains(waits, "apiservice/v1.example.org") {
		t.Errorf("waits for %q", waits)
	}
}

// TestRestartAuthorities checks that only the later stages of a rotation go back to the first one.
func TestRestartAuthorities(t *testing.T) {
	for stage, restarts := range map[rotation.Stage]bool{
		rotation.None: false, rotation.TrustBoth: false, rotation.Reissue: true, rotation.DropOld: true,
	} {
		h := ownedtest.NewHost(t, ownedtest.NewCluster())
		h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Authorities,
			rotation.Decision{Next: stage}, ownedtest.Now()))
		err := rotations.RestartAuthorities(t.Context(), h.Objects, h.Cluster(), "lost", ownedtest.Now())
		if got, _ := stages.Authorities.Stage(h.Cluster()); owned.Stale(err) != restarts ||
			restarts && got != rotation.TrustBoth {
			t.Errorf("stage %q: %q, %v", stage, got, err)
		}
	}
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Authorities,
		rotation.Decision{Next: rotation.Reissue}, ownedtest.Now()))
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if err := rotations.RestartAuthorities(
		t.Context(), h.Objects, h.Cluster(), "lost", ownedtest.Now(),
	); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed write: %v", err)
	}
}

// TestNames checks that the names of successors belong to the operator's authorities, and others do not.
func TestNames(t *testing.T) {
	cluster := ownedtest.NewCluster()
	next, err := rotations.Successor(cluster, credentials.Set{}, desired.ClientDomain, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	name := rotations.AuthorityName(cluster, desired.ClientDomain)
	for common, own := range map[string]bool{
		name: true, name + "@1767225600": true, name + "x": false, "corporate": false,
	} {
		if rotations.IsAuthorityName(cluster, desired.ClientDomain, common) != own {
			t.Errorf("%s: own %t", common, !own)
		}
	}
	if !slices.ContainsFunc(
		(pki.Bundle{Signer: next}).Subjects(), func(subject []byte) bool {
			return strings.Contains(string(subject), name+"@")
		},
	) {
		t.Error("the successor has another name")
	}
}

// TestFailedRequests lets each request of a plan fail.
func TestFailedRequests(t *testing.T) {
	var in rotations.PlanInput
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		k := &v1alpha1.ApiServerKubeconfig{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k"}}
		k.Spec.ClusterRef.Name = "demo"
		h := ownedtest.NewHost(t, ownedtest.NewCluster(external, requested, func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Companions.KubeScheduler = &v1alpha1.Companion{Image: "scheduler"}
		}), k)
		var err error
		in = rotations.PlanInput{Now: ownedtest.Now().Add(365 * 24 * time.Hour)}
		_, _, err = reconcile(t, h, ownedtest.Now())
		h.Must(err)
		in.Credentials, _, err = reconcile(t, h, ownedtest.Now().Add(time.Hour))
		h.Must(err)
		return h
	}, func(h *ownedtest.Host) error {
		in.State = &observed.State{Cluster: h.Cluster()}
		_, err := rotations.Plan(t.Context(), h.Objects, in)
		return err
	})
}
