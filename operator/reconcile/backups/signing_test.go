package backups

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// signingSecret returns the Secret with the key that signs the backups of the cluster.
func (e *environment) signingSecret() *corev1.Secret {
	e.t.Helper()
	secret := &corev1.Secret{}
	e.must(e.client.Get(e.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-backup-signing"}, secret))
	return secret
}

// TestSigningKey checks that the first backup creates the signing key in a Secret that the cluster owns, that the pod
// gets the key only as a file, and that later backups use the same key.
func TestSigningKey(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	e.reconcile()
	secret := e.signingSecret()
	key, err := format.ParseSigningKey(secret.Data[desired.SigningKey])
	if err != nil || string(secret.Data[desired.VerificationKey]) != string(format.VerificationKeyOf(key)) ||
		metav1.GetControllerOf(secret).Name != "demo" {
		t.Errorf("%+v, %v", secret, err)
	}
	container := e.pod("b-try1").Spec.Containers[0]
	text, err := json.Marshal(container)
	e.must(err)
	if !strings.Contains(string(text),
		`"name":"QUORATE_SIGNING_KEY_FILE","value":"/etc/quorate/backup-signing/signing.key"`) ||
		strings.Contains(string(text), "PRIVATE KEY") {
		t.Errorf("the container is %s", text)
	}
	// Images of earlier releases do not know a flag for the key and would exit.
	if arguments := strings.Join(container.Args, " "); strings.Contains(arguments, "signing") {
		t.Errorf("arguments %s", arguments)
	}
	e.end("b-try1", corev1.PodFailed, "no quorum")
	e.reconcile()
	if unchanged := e.signingSecret(); unchanged.ResourceVersion != secret.ResourceVersion {
		t.Error("the Secret has changed")
	}
}

// TestUnusableSigningKey checks that a backup waits, and says why, if the Secret of the signing key has another owner
// or no key, and that a deleted Secret is created again.
func TestUnusableSigningKey(t *testing.T) {
	e := newEnvironment(t)
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-backup-signing"}}
	e.must(e.client.Create(t.Context(), foreign))
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	expect := func(want string) {
		t.Helper()
		if b := e.reconcile(); !strings.Contains(b.Status.Conditions[0].Message, want) {
			t.Errorf("%+v, want %q", b.Status.Conditions[0], want)
		}
		err := e.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "b-try1"}, &corev1.Pod{})
		if client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("the pod was created: %v", err)
		}
	}
	expect("which the ApiServerCluster does not own; delete it")
	e.must(e.client.Delete(t.Context(), foreign))
	cluster := &v1alpha1.ApiServerCluster{}
	e.must(e.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo"}, cluster))
	e.must((&Reconciler{Client: e.client, Reader: e.client}).createSigningKey(t.Context(), cluster))
	secret := e.signingSecret()
	secret.Data[desired.SigningKey] = []byte("hunter2")
	e.must(e.client.Update(t.Context(), secret))
	expect("has no usable signing.key, delete it to create another key")
	e.must(e.client.Delete(t.Context(), secret))
	e.reconcile()
	e.pod("b-try1")
}

// TestUnsignedBackupIsReported checks that the condition says that a backup is not signed, so that it cannot be
// verified by its location alone.
func TestUnsignedBackupIsReported(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	e.reconcile()
	e.end("b-try1", corev1.PodSucceeded, `{"manifest":{"uid":"uid"}}`)
	if b := e.reconcile(); !strings.Contains(b.Status.Conditions[0].Message, "the backup is not signed") {
		t.Errorf("%+v", b.Status.Conditions[0])
	}
}
