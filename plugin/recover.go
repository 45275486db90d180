package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// recoverOptions are the flags of `kubectl quorate recover`.
type recoverOptions struct {
	member     string
	backup     string
	identities string
	unverified bool
	id         string
	yes        bool
	timeout    time.Duration
	wait       bool
}

func (t *tool) recoverCommand() *cobra.Command {
	var o recoverOptions
	command := &cobra.Command{
		Use: "recover [CLUSTER]", Short: "Recover a cluster whose etcd has lost its quorum",
		Long: "Recover a cluster whose etcd has lost its quorum: continue with the data of one member, or with a backup. " +
			"Writes\nthat only the lost members have are lost. Asks for a confirmation unless --yes is set.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	f := command.Flags()
	f.StringVar(&o.member, "member", "", "Member to recover from; default: the reachable one with the newest revision")
	f.StringVar(&o.backup, "from", "", "ApiServerBackup to recover from, instead of a member")
	f.StringVar(&o.identities, "identities-secret", "", "Secret with the key identities, which decrypts the backup")
	f.BoolVar(&o.unverified, "unverified", false,
		"Recover from whatever is stored, even if it is not the backup of --from that was created")
	f.StringVar(&o.id, "request-id", "", "ID of the request, which takes effect once; default: the current time")
	f.BoolVarP(&o.yes, "yes", "y", false, "Do not ask for a confirmation")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "Time to wait; 0 waits without limit")
	f.BoolVar(&o.wait, "wait", true, "Wait until the cluster is recovered")
	command.MarkFlagsMutuallyExclusive("member", "from")
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.recover(ctx, key, o) })
	return command
}

func (t *tool) recover(ctx context.Context, key client.ObjectKey, o recoverOptions) error {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := t.client.Get(ctx, key, cluster); err != nil {
		return err
	}
	quorum := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.EtcdQuorum)
	switch {
	case quorum == nil:
		return fmt.Errorf("cluster %s has no embedded etcd with a known state", key.Name)
	case quorum.Status != metav1.ConditionFalse || quorum.Reason != "QuorumLost" && quorum.Reason != "Recovering":
		return fmt.Errorf("cluster %s has not lost its quorum: condition %s is %s, %s", key.Name, quorum.Type,
			quorum.Status, quorum.Message)
	}
	if o.backup != "" {
		if err := t.checkBackup(ctx, client.ObjectKey{Namespace: key.Namespace, Name: o.backup}, o.identities); err != nil {
			return err
		}
	}
	t.note("%s\n%s", quorum.Message, o.consequence(cluster))
	if err := t.confirm(key.Name, o.yes); err != nil {
		return err
	}
	if o.id == "" {
		o.id = t.now().UTC().Format("2006-01-02T15-04-05")
	}
	if err := t.patchSpec(ctx, cluster, map[string]any{"recovery": o.request()}); err != nil {
		return err
	}
	t.note("Requested recovery %s", o.id)
	if !o.wait {
		return nil
	}
	if err := t.awaitCluster(ctx, key, o.timeout, "recovered", goals["recovered"]); err != nil {
		return err
	}
	return t.awaitCluster(ctx, key, o.timeout, "settled", goals["settled"])
}

// consequence describes the effects of the recovery, for the confirmation.
func (o recoverOptions) consequence(cluster *v1alpha1.ApiServerCluster) string {
	from := "the reachable member with the newest revision"
	switch {
	case o.member != "":
		from = "member " + o.member
	case o.backup != "":
		from = "backup " + o.backup
	}
	return fmt.Sprintf("The recovery stops cluster %s and continues with only the data of %s. All other writes are "+
		"lost, even if they were acknowledged. If the lost members can come back with their volumes, wait for them instead.",
		cluster.Name, from)
}

func (o recoverOptions) request() v1alpha1.Recovery {
	request := v1alpha1.Recovery{RequestID: o.id, Member: o.member}
	if o.backup != "" {
		request.From = &v1alpha1.RestoreSource{BackupName: o.backup}
		if o.unverified {
			request.From.Verification = v1alpha1.SkipVerification
		}
	}
	if o.identities != "" {
		request.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: o.identities}}
	}
	return request
}

// confirm returns an error unless yes is set or the user types the name of the cluster.
func (t *tool) confirm(name string, yes bool) error {
	if yes {
		return nil
	}
	if !t.asks {
		return errors.New("standard input is not a terminal: confirm with --yes")
	}
	fmt.Fprintf(t.err, "Type the name of the cluster to continue: ")
	line, err := bufio.NewReader(t.in).ReadString('\n')
	if err != nil && line == "" {
		return fmt.Errorf("read the confirmation: %w", err)
	}
	if strings.TrimSpace(line) != name {
		return errors.New("not confirmed; nothing was changed")
	}
	return nil
}

// patchSpec merges fields into the spec of a cluster.
func (t *tool) patchSpec(ctx context.Context, cluster *v1alpha1.ApiServerCluster, spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	return t.client.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch))
}
