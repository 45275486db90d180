package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/render"
)

// backupOptions are the flags of `kubectl quorate backup`.
type backupOptions struct {
	format      string
	name        string
	destination destination
	recipients  string
	policy      string
	timeout     time.Duration
	wait        bool
}

// Limits of spec.timeoutSeconds of an ApiServerBackup.
const (
	minBackupTimeout = 10 * time.Second
	maxBackupTimeout = 24 * time.Hour
)

// destination contains the flags that select a BackupDestination.
type destination struct {
	claim, path, endpoint, bucket, prefix, region, credentials string
	pathStyle                                                  bool
}

func (d *destination) flags(f *pflag.FlagSet) {
	f.StringVar(&d.claim, "claim", "", "PersistentVolumeClaim that contains backups")
	f.StringVar(&d.path, "claim-path", "", "Directory in the volume of --claim; default: its root")
	f.StringVar(&d.endpoint, "s3-endpoint", "", "URL of S3-compatible storage, instead of --claim")
	f.StringVar(&d.bucket, "s3-bucket", "", "S3 bucket")
	f.StringVar(&d.prefix, "s3-prefix", "", "Prefix of the keys in the bucket; default: none")
	f.StringVar(&d.region, "s3-region", "", "S3 region; default: the bucket's region")
	f.StringVar(&d.credentials, "s3-secret", "", "Secret with the keys accessKeyID and secretAccessKey")
	f.BoolVar(&d.pathStyle, "s3-path-style", false, "Put the bucket into the path of URLs instead of the host name")
}

// value returns the BackupDestination that the flags select, or nil if no flag selects one.
func (d *destination) value() (*v1alpha1.BackupDestination, error) {
	s3 := d.bucket != "" || d.prefix != "" || d.region != "" || d.credentials != "" || d.pathStyle
	switch {
	case d.claim != "" && (d.endpoint != "" || s3):
		return nil, errors.New("set --claim or --s3-endpoint and its other flags, not both")
	case d.claim == "" && d.path != "":
		return nil, errors.New("--claim-path needs --claim")
	case d.endpoint == "" && s3:
		return nil, errors.New("the flags --s3-... need --s3-endpoint")
	case d.claim == "" && d.endpoint == "":
		return nil, nil //nolint:nilnil // no flag is set
	case d.claim != "":
		return &v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: d.claim, Path: d.path}}, nil
	case d.bucket == "" || d.credentials == "":
		return nil, errors.New("--s3-endpoint needs --s3-bucket and --s3-secret")
	}
	return &v1alpha1.BackupDestination{S3: &v1alpha1.S3Destination{
		Endpoint: d.endpoint, Bucket: d.bucket, Prefix: d.prefix, Region: d.region, PathStyle: d.pathStyle,
		CredentialsSecretRef: corev1.LocalObjectReference{Name: d.credentials},
	}}, nil
}

func (t *tool) backupCommand() *cobra.Command {
	var o backupOptions
	command := &cobra.Command{
		Use: "backup [CLUSTER]", Short: "Create a backup of a cluster, and follow it",
		Long: "Create an ApiServerBackup of a cluster, and wait until it is stored and verified. The default destination " +
			"is that\nof the cluster's schedule or of its newest backup, with the same encryption. Exits with 2 if the backup " +
			"fails.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	outputFlag(command, &o.format)
	f := command.Flags()
	f.StringVar(&o.name, "name", "", "Name of the ApiServerBackup; default: CLUSTER-TIME")
	o.destination.flags(f)
	f.StringVar(&o.recipients, "encryption-secret", "",
		"Secret whose key recipients has the age recipients to encrypt the backup for; default: not encrypted")
	f.StringVar(&o.policy, "deletion-policy", "",
		"What happens to the data when the ApiServerBackup is deleted: Retain or Delete; default: Retain")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "Time after which the backup fails")
	f.BoolVar(&o.wait, "wait", true, "Wait until the backup is complete")
	checkFlags(command, o.check)
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.backup(ctx, key, o) })
	return command
}

// check returns an error if the flags contradict each other. It needs no connection.
func (o *backupOptions) check() error {
	if o.timeout < minBackupTimeout || o.timeout > maxBackupTimeout {
		return fmt.Errorf("--timeout=%s must be between %s and %s", o.timeout, minBackupTimeout, maxBackupTimeout)
	}
	_, err := o.destination.value()
	return err
}

func (t *tool) backup(ctx context.Context, key client.ObjectKey, o backupOptions) error {
	in, err := t.backupInput(ctx, key, o)
	if err != nil {
		return err
	}
	spec, err := o.spec(in)
	if err != nil {
		return err
	}
	backup := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: o.name}, Spec: spec}
	if backup.Name == "" {
		backup.Name = key.Name + "-" + t.now().UTC().Format("20060102-150405")
	}
	err = t.client.Create(ctx, backup)
	if apierrors.IsAlreadyExists(err) && o.name == "" { // another backup was created in the same second
		backup.Name += "-" + rand.String(5)
		err = t.client.Create(ctx, backup)
	}
	if err != nil {
		return err
	}
	t.note("Created ApiServerBackup %s", backup.Name)
	switch {
	case o.wait:
		return t.followBackup(ctx, client.ObjectKeyFromObject(backup), o)
	case o.format != "":
		return t.print(o.format, backup)
	}
	return nil
}

// backupInput reads the cluster. Unless flags select a destination, it also reads the cluster's backups and schedules,
// whose destination is the default.
func (t *tool) backupInput(ctx context.Context, key client.ObjectKey, o backupOptions) (overview.Input, error) {
	if to, err := o.destination.value(); to == nil && err == nil {
		return overview.CollectBackups(ctx, t.client, key)
	}
	in := overview.Input{Cluster: &v1alpha1.ApiServerCluster{}}
	return in, t.client.Get(ctx, key, in.Cluster)
}

// spec returns the spec of the backup. Destination and encryption are by default copied from a schedule, or else from
// the newest backup.
func (o backupOptions) spec(in overview.Input) (v1alpha1.ApiServerBackupSpec, error) {
	seconds := int32(o.timeout.Seconds())
	spec := v1alpha1.ApiServerBackupSpec{
		ClusterName: in.Cluster.Name, DeletionPolicy: v1alpha1.BackupDeletionPolicy(o.policy), TimeoutSeconds: &seconds,
	}
	to, err := o.destination.value()
	if err != nil {
		return spec, err
	}
	switch like := newestBackup(in.Backups); {
	case to != nil:
		spec.Destination = *to
	case len(in.Schedules) > 0:
		template := in.Schedules[0].Spec.Template
		spec.Destination, spec.Encryption = template.Destination, template.Encryption
	case like != nil:
		spec.Destination, spec.Encryption = like.Spec.Destination, like.Spec.Encryption
	default:
		return spec, fmt.Errorf("cluster %s has no backup or schedule with a destination to use as default: set --claim, "+
			"or --s3-endpoint, --s3-bucket and --s3-secret", in.Cluster.Name)
	}
	if o.recipients != "" {
		spec.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: o.recipients}}
	}
	return spec, nil
}

func newestBackup(all []v1alpha1.ApiServerBackup) *v1alpha1.ApiServerBackup {
	var newest *v1alpha1.ApiServerBackup
	for i := range all {
		if newest == nil || newest.CreationTimestamp.Before(&all[i].CreationTimestamp) {
			newest = &all[i]
		}
	}
	return newest
}

func (t *tool) followBackup(ctx context.Context, key client.ObjectKey, o backupOptions) error {
	var last *v1alpha1.ApiServerBackup
	w := waiting{what: "backup " + key.Name, state: "complete", timeout: o.timeout + time.Minute}
	err := await(ctx, t, w, key, &v1alpha1.ApiServerBackupList{}, func(b *v1alpha1.ApiServerBackup) (bool, error) {
		last = b
		return b.Finished(), nil
	}, describeBackup)
	if err != nil {
		return err
	}
	if o.format != "" {
		if err := t.print(o.format, last); err != nil {
			return err
		}
	}
	if last.Status.Phase != v1alpha1.BackupCompleted {
		return negative("%s", describeBackup(last))
	}
	if o.format == "" {
		fmt.Fprintf(t.out, "%s: %s, revision %d, %s\n", last.Name, render.Bytes(last.Status.SizeBytes),
			last.Status.Revision, last.Status.Location)
	}
	return nil
}

// describeBackup returns the progress of a backup in one line.
func describeBackup(b *v1alpha1.ApiServerBackup) string {
	text := fmt.Sprintf("backup %s: %s", b.Name, strings.ToLower(string(b.Status.Phase)))
	if b.Status.Phase == "" {
		text = fmt.Sprintf("backup %s: waiting for the operator", b.Name)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete); c != nil &&
		c.Status != metav1.ConditionTrue && c.Message != "" {
		text += ", " + c.Message
	}
	return text
}
