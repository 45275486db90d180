package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// restoreOptions are the flags of `kubectl quorate restore`.
type restoreOptions struct {
	format      string
	backup      string
	destination destination
	backupPath  string
	key         string
	digest      string
	unverified  bool
	specOf      string
	replicas    int32
	identities  string
	tokenKey    string
	replaceKey  bool
	timeout     time.Duration
	wait        bool
}

func (t *tool) restoreCommand() *cobra.Command {
	var o restoreOptions
	command := &cobra.Command{
		Use: "restore NEW-CLUSTER", Short: "Create a cluster from a backup",
		Long: "Create an ApiServerCluster from a completed ApiServerBackup of the namespace, or from the location of a " +
			"backup.\nA backup cannot be restored into an existing cluster. --spec-of copies the spec of another cluster.",
		Example: "  kubectl quorate restore copy --from=monday --spec-of=demo",
		Args:    cobra.ExactArgs(1),
	}
	outputFlag(command, &o.format)
	f := command.Flags()
	f.StringVar(&o.backup, "from", "", "Name of an ApiServerBackup")
	o.destination.flags(f)
	f.StringVar(&o.backupPath, "backup-path", "",
		"Path of the backup in the volume or bucket, such as default/demo/monday, instead of --from")
	f.StringVar(&o.key, "verification-key", "",
		"Key that must have signed the backup of --backup-path; the status of its ApiServerBackup has it")
	f.StringVar(&o.digest, "manifest-sha256", "",
		"SHA-256 that backup.json of the backup of --backup-path must have; the status of its ApiServerBackup has it")
	f.BoolVar(&o.unverified, "unverified", false,
		"Restore whatever is stored, even if it is not the backup that was created")
	f.StringVar(&o.specOf, "spec-of", "", "Cluster whose spec is copied; default: the defaults")
	f.Int32Var(&o.replicas, "replicas", 0, "API servers; default: 3, or those of --spec-of")
	f.StringVar(&o.identities, "identities-secret", "", "Secret with the key identities, which decrypts the backup")
	f.StringVar(&o.tokenKey, "service-account-key-secret", "",
		"Secret with service-account.pub and service-account.key of the original cluster; default: those in the backup, or "+
			"of the original cluster in the namespace")
	f.BoolVar(&o.replaceKey, "replace-service-account-key", false,
		"Create a new key if it is missing; tokens of the original cluster become invalid")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "Time to wait; 0 waits without limit")
	f.BoolVar(&o.wait, "wait", true, "Wait until the cluster is settled")
	checkFlags(command, func() error { _, err := o.source(); return err })
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.restore(ctx, key, o) })
	return command
}

func (t *tool) restore(ctx context.Context, key client.ObjectKey, o restoreOptions) error {
	from, err := o.source()
	if err != nil {
		return err
	}
	if o.backup != "" {
		if err := t.checkBackup(ctx, client.ObjectKey{Namespace: key.Namespace, Name: o.backup}, o.identities); err != nil {
			return err
		}
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if o.specOf != "" {
		other := &v1alpha1.ApiServerCluster{}
		if err := t.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: o.specOf}, other); err != nil {
			return err
		}
		cluster.Spec = *other.Spec.DeepCopy()
		cluster.Spec.Recovery, cluster.Spec.Adopt = nil, nil
	}
	if o.replicas > 0 {
		cluster.Spec.Replicas = &o.replicas
	}
	cluster.Spec.Restore = from
	if err := t.client.Create(ctx, cluster); err != nil {
		return err
	}
	t.note("Created ApiServerCluster %s", key.Name)
	if o.wait {
		if err := t.awaitCluster(ctx, key, o.timeout, "settled", goals["settled"]); err != nil {
			return err
		}
	}
	if o.format == "" {
		return nil
	}
	if err := t.client.Get(ctx, key, cluster); err != nil {
		return err
	}
	return t.print(o.format, cluster)
}

// checkBackup returns an error if a backup cannot be restored. It is called before anything is created or stopped for
// the restore.
func (t *tool) checkBackup(ctx context.Context, key client.ObjectKey, identities string) error {
	b := &v1alpha1.ApiServerBackup{}
	err := t.client.Get(ctx, key, b)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("ApiServerBackup %s does not exist in namespace %s; nothing was changed", key.Name, key.Namespace)
	case err != nil:
		return fmt.Errorf("read ApiServerBackup %s: %w", key.Name, err)
	case b.DeletionTimestamp != nil:
		return fmt.Errorf("ApiServerBackup %s is being deleted; nothing was changed", key.Name)
	case b.Status.Phase != v1alpha1.BackupCompleted:
		return fmt.Errorf("%s; only a completed backup can be restored, and nothing was changed", describeBackup(b))
	case b.Status.Encrypted && identities == "":
		return fmt.Errorf("ApiServerBackup %s is encrypted: set --identities-secret; nothing was changed", key.Name)
	case !b.Status.Encrypted && identities != "":
		return fmt.Errorf("ApiServerBackup %s is not encrypted: leave out --identities-secret; nothing was changed", key.Name)
	}
	return nil
}

// source returns spec.restore.
func (o restoreOptions) source() (*v1alpha1.Restore, error) {
	to, err := o.destination.value()
	if err != nil {
		return nil, err
	}
	restore := &v1alpha1.Restore{From: v1alpha1.RestoreSource{BackupName: o.backup}}
	switch {
	case o.backup != "" && (to != nil || o.backupPath != ""):
		return nil, errors.New("set --from, or a destination and --backup-path, not both")
	case o.backup == "" && (to == nil || o.backupPath == ""):
		return nil, fmt.Errorf("set --from to a completed ApiServerBackup, or set --claim or --s3-endpoint, and " +
			"--backup-path")
	case o.backup != "" && (o.key != "" || o.digest != ""):
		return nil, errors.New("--verification-key and --manifest-sha256 need --backup-path: the digest of an " +
			"ApiServerBackup is in its status")
	case to != nil && o.key == "" && o.digest == "" && !o.unverified:
		return nil, errors.New("nothing shows whether the backup was replaced: set --verification-key or " +
			"--manifest-sha256, or --unverified to restore whatever is stored")
	case to != nil:
		restore.From.Location = &v1alpha1.BackupLocation{
			Destination: *to, Path: o.backupPath, VerificationKey: o.key, ManifestSHA256: o.digest,
		}
	}
	if o.unverified {
		restore.From.Verification = v1alpha1.SkipVerification
	}
	if o.identities != "" {
		restore.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: o.identities}}
	}
	if o.tokenKey != "" {
		restore.ServiceAccountKeySecretRef = &corev1.LocalObjectReference{Name: o.tokenKey}
	}
	if o.replaceKey {
		restore.ServiceAccountKeyPolicy = v1alpha1.ReplaceServiceAccountKey
	}
	return restore, nil
}
