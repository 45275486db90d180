package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// rotateOptions are the flags of `kubectl quorate rotate`.
type rotateOptions struct {
	overlap string
	timeout time.Duration
	wait    bool
}

// credential is a kind of credentials that `kubectl quorate rotate` replaces.
type credential struct {
	name, summary string
	overlap       bool // the old and the new credentials are both accepted for an overlap
	spec          func(rotateBefore string, overlap map[string]any) map[string]any
}

var credentials = []credential{
	{"authorities", "the certificate authorities, and with them all certificates", true,
		func(before string, fields map[string]any) map[string]any {
			fields["rotateBefore"] = before
			return map[string]any{"certificates": map[string]any{"authorities": fields}}
		}},
	{"service-account-keys", "the key that signs service-account tokens", true,
		func(before string, fields map[string]any) map[string]any {
			fields["rotateBefore"] = before
			return map[string]any{"certificates": map[string]any{"serviceAccountKeys": fields}}
		}},
	{"encryption-keys", "the key that encrypts objects in etcd", false,
		func(before string, _ map[string]any) map[string]any {
			return map[string]any{"encryption": map[string]any{"keys": map[string]any{"rotateBefore": before}}}
		}},
}

func (t *tool) rotateCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "rotate", Short: "Replace authorities or keys in stages, without interruption", Args: cobra.NoArgs,
		Long: "Replace the current authorities or keys. The old and the new ones are both accepted for the overlap in the " +
			"spec of\nthe cluster, so a rotation takes days by default. `kubectl quorate status` shows its stage.",
		// Without RunE, cobra prints the help for an unknown subcommand and reports success.
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	for _, c := range credentials {
		root.AddCommand(t.rotateOne(c))
	}
	return root
}

func (t *tool) rotateOne(c credential) *cobra.Command {
	var o rotateOptions
	command := &cobra.Command{
		Use: c.name + " [CLUSTER]", Short: "Replace " + c.summary, Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeClusters,
	}
	f := command.Flags()
	if c.overlap {
		f.StringVar(&o.overlap, "overlap", "",
			"Duration for which the old ones stay accepted; it is stored in the spec. Default: the overlap in the spec")
	}
	f.BoolVar(&o.wait, "wait", false, "Wait until the rotation is complete")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "Time to wait; 0 waits without limit")
	checkFlags(command, o.check)
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.rotate(ctx, key, c, o) })
	return command
}

// check returns an error if --overlap is not a duration.
func (o *rotateOptions) check() error {
	if o.overlap == "" {
		return nil
	}
	if _, err := time.ParseDuration(o.overlap); err != nil {
		return fmt.Errorf("--overlap: %w", err)
	}
	return nil
}

func (t *tool) rotate(ctx context.Context, key client.ObjectKey, c credential, o rotateOptions) error {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := t.client.Get(ctx, key, cluster); err != nil {
		return err
	}
	if c.name == "encryption-keys" && (cluster.Spec.Encryption == nil || cluster.Spec.Encryption.KMS != nil) {
		return fmt.Errorf("cluster %s has no encryption keys that the operator manages: configure them in spec.encryption",
			key.Name)
	}
	fields := map[string]any{}
	if o.overlap != "" {
		fields["overlap"] = o.overlap
	}
	if err := t.patchSpec(ctx, cluster, c.spec(t.now().UTC().Format(time.RFC3339), fields)); err != nil {
		return err
	}
	t.note("Requested the replacement of %s", c.summary)
	if !o.wait {
		t.note("Follow it with: kubectl quorate wait %s --for=rotated --timeout=0 -n %s", key.Name, key.Namespace)
		return nil
	}
	return t.awaitCluster(ctx, key, o.timeout, "rotated", goals["rotated"])
}
