package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// TestBackupAndRestore backs up a cluster to a volume and, encrypted, to S3, and restores new clusters from both. A
// backup that was edited in S3 is not restored. Another cluster in the same sandbox runs out of space.
func TestBackupAndRestore(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	b := &backupTest{sandbox: startSandbox(t)}
	b.settled(3, 3)
	b.prepare(upstream.StartS3(t))
	b.write("before")
	before := b.contents(b.client("demo"))
	token := b.token()

	s3 := v1alpha1.BackupDestination{S3: &v1alpha1.S3Destination{
		Endpoint: b.s3.URL, Bucket: upstream.S3Bucket, Prefix: "clusters", Region: "us-east-1", PathStyle: true,
		CredentialsSecretRef: corev1.LocalObjectReference{Name: "s3"},
	}}
	encryption := &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "keys"}}
	volume := v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}}
	b.quorate("backup", "demo", "--name=plain", "--claim=backups", "--deletion-policy=Delete")
	b.inspect()
	b.create(b.backup("encrypted", s3, encryption))
	plain, encrypted := b.completed("plain"), b.completed("encrypted")
	if !encrypted.Status.Encrypted || plain.Status.Encrypted || plain.Status.Path != "default/demo/plain" ||
		plain.Status.VerificationKey == "" || plain.Status.VerificationKey != encrypted.Status.VerificationKey {
		t.Errorf("encrypted %+v\nplain %+v", encrypted.Status, plain.Status)
	}
	b.write("after")
	last := b.revision(b.client("demo"))

	// The encrypted backup contains the service-account key, so the name of the backup is sufficient.
	b.quorate("restore", "copy", "--from=encrypted", "--identities-secret=keys", "--spec-of=demo")
	b.settledCluster("copy", 3)
	b.statusPage()
	b.compare("copy", before, last)
	b.acceptsToken("copy", token)

	// The plain one does not contain the key. The cluster does not start with another key until the spec names the
	// right one.
	b.create(secret("foreign", map[string]string{"service-account.pub": "x", "service-account.key": "y"}))
	b.createCluster("moved", 1, v1alpha1.Restore{
		From: v1alpha1.RestoreSource{Location: &v1alpha1.BackupLocation{
			Destination: volume, Path: plain.Status.Path, VerificationKey: plain.Status.VerificationKey,
		}},
		ServiceAccountKeySecretRef: &corev1.LocalObjectReference{Name: "foreign"},
	})
	b.waitFor("condition ServiceAccountKeyMissing", func() (bool, string) {
		c := meta.FindStatusCondition(b.named("moved").Status.Conditions, v1alpha1.Restored)
		return c != nil && c.Reason == "ServiceAccountKeyMissing" && strings.Contains(c.Message, "foreign"), fmt.Sprint(c)
	})
	if _, err := b.pods.CoreV1().Pods("default").Get(
		t.Context(), "moved-0", metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("a member started without the service-account key: %v", err)
	}
	b.run(b.management, "patch", "apiservercluster/moved", "--type=merge", "-p",
		`{"spec":{"restore":{"serviceAccountKeySecretRef":{"name":"demo-service-account"}}}}`)
	b.settledCluster("moved", 1)
	b.compare("moved", before, last)
	b.acceptsToken("moved", token)
	b.deleteBackup("encrypted")
	b.restoreEncryptedAtRest(volume, s3, encryption)
	b.deleteAndAdopt("vault-sealed", volume)
	b.outOfSpace()
}

// restoreEncryptedAtRest restores a cluster with spec.encryption after its deletion. The keys are in the encrypted
// backup. For a plain backup, the condition reports them as missing, and no member starts until the spec names a copy.
func (b *backupTest) restoreEncryptedAtRest(volume, s3 v1alpha1.BackupDestination, e *v1alpha1.BackupEncryption) {
	b.t.Helper()
	atRest := &v1alpha1.Encryption{}
	b.create(&v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "vault", Namespace: "default"},
		Spec:       v1alpha1.ApiServerClusterSpec{Replicas: ptr.To[int32](1), Encryption: atRest},
	})
	b.settledCluster("vault", 1)
	hidden := secret("hidden", map[string]string{"password": "swordfish"})
	must(b.client("vault").CoreV1().Secrets("default").Create(b.t.Context(), hidden, metav1.CreateOptions{}))(b.t)
	open, sealed := b.backup("open", volume, nil), b.backup("sealed", s3, e)
	open.Spec.ClusterName, sealed.Spec.ClusterName = "vault", "vault"
	b.create(open, sealed)
	b.completed("sealed")
	if keys := b.completed("open").Status.EncryptionKeys; len(keys) != 1 || !strings.HasPrefix(keys[0], "secretbox:v1:") {
		b.t.Errorf("keys of the backup: %v", keys)
	}
	stored := must(b.pods.CoreV1().Secrets("default").Get(b.t.Context(),
		"vault-encryption-keys", metav1.GetOptions{}))(b.t)
	b.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "copied-keys", Namespace: "default"}, Data: stored.Data})
	b.run(b.management, "delete", "apiservercluster/vault", "--timeout=60s")

	restored := func(name string, from v1alpha1.Restore) {
		b.create(&v1alpha1.ApiServerCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec:       v1alpha1.ApiServerClusterSpec{Replicas: ptr.To[int32](1), Encryption: atRest, Restore: &from},
		})
	}
	repair := b.replaceManifest("clusters/default/vault/sealed")
	restored("vault-sealed", v1alpha1.Restore{From: v1alpha1.RestoreSource{BackupName: "sealed"}, Encryption: e})
	restored("vault-open", v1alpha1.Restore{
		From:                    v1alpha1.RestoreSource{BackupName: "open"},
		ServiceAccountKeyPolicy: v1alpha1.ReplaceServiceAccountKey,
	})
	b.waitFor("condition EncryptionKeysMissing", func() (bool, string) {
		c := meta.FindStatusCondition(b.named("vault-open").Status.Conditions, v1alpha1.Restored)
		return c != nil && c.Reason == "EncryptionKeysMissing" &&
			strings.Contains(c.Message, "vault-encryption-keys"), fmt.Sprint(c)
	})
	if _, err := b.pods.CoreV1().Pods("default").Get(
		b.t.Context(), "vault-open-0", metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		b.t.Errorf("a member started without the encryption keys: %v", err)
	}
	b.run(b.management, "patch", "apiservercluster/vault-open", "--type=merge", "-p",
		`{"spec":{"restore":{"encryptionKeysSecretRef":{"name":"copied-keys"}}}}`)
	b.waitFor("condition RestoreFailed", func() (bool, string) {
		c := meta.FindStatusCondition(b.named("vault-sealed").Status.Conditions, v1alpha1.Restored)
		return c != nil && c.Reason == "RestoreFailed" &&
			strings.Contains(c.Message, "is not the expected backup"), fmt.Sprint(c)
	})
	repair()
	for _, name := range []string{"vault-sealed", "vault-open"} {
		b.settledCluster(name, 1)
		if s := b.named(name).Status.Restore; s.Verification != "ManifestDigest" {
			b.t.Errorf("%s: %+v", name, s)
		}
		got, err := b.client(name).CoreV1().Secrets("default").Get(b.t.Context(), "hidden", metav1.GetOptions{})
		if err != nil || string(got.Data["password"]) != "swordfish" {
			b.t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// replaceManifest edits the manifest of a backup in the bucket, as a user can who can write to the bucket. The returned
// function restores the original.
func (b *backupTest) replaceManifest(backup string) (repair func()) {
	b.t.Helper()
	file := filepath.Join(b.s3.Directory, backup, "backup.json")
	original := must(os.ReadFile(file))(b.t)
	edited := strings.Replace(string(original), `"cluster": "vault"`, `"cluster": "demo"`, 1)
	if edited == string(original) {
		b.t.Fatalf("the manifest is %s", original)
	}
	check(b.t, os.WriteFile(file, []byte(edited), 0o600))
	return func() { check(b.t, os.WriteFile(file, original, 0o600)) }
}

type backupTest struct {
	*sandbox
	s3 upstream.S3Server
}

func secret(name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, StringData: data}
}

// prepare creates the volume, the credentials and the age keys.
func (b *backupTest) prepare(server upstream.S3Server) {
	b.t.Helper()
	b.s3 = server
	check(b.t, corev1.AddToScheme(b.clusters.Scheme()))
	pair := must(age.GenerateX25519Identity())(b.t)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "backups", Namespace: "default"}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	b.create(claim, secret("s3", map[string]string{
		"accessKeyID": upstream.S3AccessKey, "secretAccessKey": upstream.S3SecretKey,
	}),
		secret("keys", map[string]string{"recipients": pair.Recipient().String(), "identities": pair.String()}))
}

func (b *backupTest) create(objects ...ctrl.Object) {
	b.t.Helper()
	for _, object := range objects {
		check(b.t, b.clusters.Create(b.t.Context(), object))
	}
}

func (b *backupTest) backup(
	name string, d v1alpha1.BackupDestination, e *v1alpha1.BackupEncryption,
) *v1alpha1.ApiServerBackup {
	return &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.ApiServerBackupSpec{
			ClusterName: "demo", Destination: d, Encryption: e, DeletionPolicy: v1alpha1.BackupDelete,
		},
	}
}

// completed waits until a backup is complete.
func (b *backupTest) completed(name string) *v1alpha1.ApiServerBackup {
	b.t.Helper()
	object := &v1alpha1.ApiServerBackup{}
	b.waitFor("backup "+name, func() (bool, string) {
		check(b.t, b.clusters.Get(b.t.Context(), ctrl.ObjectKey{Namespace: "default", Name: name}, object))
		if object.Status.Phase == v1alpha1.BackupFailed {
			b.t.Fatalf("backup %s failed: %+v", name, object.Status)
		}
		return object.Status.Phase == v1alpha1.BackupCompleted, fmt.Sprintf("%+v", object.Status)
	})
	b.t.Logf("%s: %d bytes in %s", name, object.Status.SizeBytes,
		object.Status.CompletionTime.Sub(object.Status.StartTime.Time))
	return object
}

// deleteBackup deletes a backup and waits until its data is deleted.
func (b *backupTest) deleteBackup(name string) {
	b.t.Helper()
	b.run(b.management, "delete", "apiserverbackup/"+name, "--timeout=60s")
	if files := must(filepath.Glob(filepath.Join(b.s3.Directory, "clusters/default/demo/*/*")))(b.t); len(files) > 0 {
		b.t.Errorf("left of the deleted backup: %v", files)
	}
}

// client returns a client of a cluster, whose kubeconfig the sandbox writes.
func (b *backupTest) client(cluster string) kubernetes.Interface {
	b.t.Helper()
	file := filepath.Join(b.directory, cluster+".kubeconfig")
	config := must(clientcmd.BuildConfigFromFlags("", file))(b.t)
	config.QPS = -1
	return must(kubernetes.NewForConfig(config))(b.t)
}

func (b *backupTest) write(prefix string) {
	b.t.Helper()
	api := b.client("demo").CoreV1().ConfigMaps("default")
	for i := range 50 {
		object := configMap(fmt.Sprintf("%s-%02d", prefix, i), i)
		object.Namespace = "default"
		must(api.Create(b.t.Context(), object, metav1.CreateOptions{}))(b.t)
	}
}

func (b *backupTest) token() string {
	b.t.Helper()
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)},
	}
	var token string
	b.waitFor("a token of the service account", func() (bool, string) {
		response, err := b.client("demo").CoreV1().ServiceAccounts("default").CreateToken(b.t.Context(), "default",
			request, metav1.CreateOptions{})
		if err != nil {
			return false, err.Error()
		}
		token = response.Status.Token
		return true, ""
	})
	return token
}

// contents returns the ConfigMaps of namespace default as JSON, by name.
func (b *backupTest) contents(api kubernetes.Interface) map[string]string {
	b.t.Helper()
	list := must(api.CoreV1().ConfigMaps("default").List(b.t.Context(), metav1.ListOptions{}))(b.t)
	contents := map[string]string{}
	for _, object := range list.Items {
		contents[object.Name] = string(must(json.Marshal(object))(b.t))
	}
	return contents
}

func (b *backupTest) revision(api kubernetes.Interface) string {
	b.t.Helper()
	return must(api.CoreV1().ConfigMaps("default").List(b.t.Context(), metav1.ListOptions{}))(b.t).ResourceVersion
}

func (b *backupTest) named(name string) *v1alpha1.ApiServerCluster {
	b.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	check(b.t, b.clusters.Get(b.t.Context(), ctrl.ObjectKey{Namespace: "default", Name: name}, cluster))
	return cluster
}

func (b *backupTest) createCluster(name string, replicas int32, from v1alpha1.Restore) {
	b.t.Helper()
	b.create(&v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       v1alpha1.ApiServerClusterSpec{Replicas: &replicas, Restore: &from},
	})
}

func (b *backupTest) settledCluster(name string, replicas int32) {
	b.t.Helper()
	b.waitFor(fmt.Sprintf("%d replicas of %s", replicas, name), func() (bool, string) {
		c := b.named(name)
		files, _ := filepath.Glob(filepath.Join(b.directory, name+".kubeconfig"))
		return c.Status.ReadyReplicas == replicas && c.Status.Voters == replicas && len(files) == 1 &&
			condition(c, "Progressing") == metav1.ConditionFalse, fmt.Sprintf("%+v", c.Status)
	})
	cluster := b.named(name)
	if cluster.Spec.Restore == nil {
		return
	}
	if c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.Restored); c == nil ||
		c.Status != metav1.ConditionTrue {
		b.t.Errorf("condition Restored of %s is %+v", name, c)
	}
}

// compare checks that a restored cluster has the objects of the backup, that revisions are ahead of the former
// cluster's, and that a watch of the former cluster does not continue.
func (b *backupTest) compare(name string, want map[string]string, last string) {
	b.t.Helper()
	api := b.client(name)
	got := b.contents(api)
	for key, text := range want {
		// The certificate authority is published again, with another value.
		if key != "kube-root-ca.crt" && got[key] != text {
			b.t.Errorf("%s has %s = %s, want %s", name, key, got[key], text)
		}
	}
	if len(got) != len(want) {
		b.t.Errorf("%s has %d objects, want %d", name, len(got), len(want))
	}
	if now := b.revision(api); !later(now, last) {
		b.t.Errorf("%s is at revision %s, not after %s", name, now, last)
	}
	stream, err := api.CoreV1().ConfigMaps("default").Watch(b.t.Context(), metav1.ListOptions{ResourceVersion: last})
	if err == nil {
		defer stream.Stop()
		event := <-stream.ResultChan()
		if event.Type != watch.Error {
			b.t.Fatalf("watch of %s from revision %s: %s %v", name, last, event.Type, event.Object)
		}
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		b.t.Errorf("watch of %s from revision %s: %v, want 410", name, last, err)
	}
}

// acceptsToken checks that a token of the former cluster authenticates.
func (b *backupTest) acceptsToken(name, token string) {
	b.t.Helper()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review = must(b.client(name).AuthenticationV1().TokenReviews().Create(b.t.Context(), review,
		metav1.CreateOptions{}))(b.t)
	if !review.Status.Authenticated || !slices.Contains(review.Status.User.Groups, "system:serviceaccounts") {
		b.t.Errorf("%s does not accept a token of the former cluster: %+v", name, review.Status)
	}
}
