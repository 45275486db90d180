package etcdctl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/snapshot"
)

func (t *tool) restoreCommand() *cobra.Command {
	o, unverified := snapshot.RestoreOptions{}, false
	command := &cobra.Command{
		Use: "restore FILE", Short: "Create a data directory from a snapshot",
		Long: "Create a data directory from a snapshot, with one member in a new etcd cluster. Further members join it\n" +
			"with --etcd-initial-cluster-state=existing. The directory is created when its data is complete; an interrupted " +
			"restore\ncan be repeated.\n\n" +
			"Revisions continue --bump-revision after the snapshot's, and all before are marked compacted: clients that\n" +
			"watched the original cluster get 410 Gone and list again, instead of missing changes.\n\n" +
			"A user who can write to the directory of the file can replace it by another snapshot: --sha256 is required, " +
			"which\n'quorate etcd snapshot save' has printed, or --unverified.",
		Example: "  quorate etcd restore snapshot.db --sha256 $SHA256 --data-dir /var/lib/quorate/etcd",
		Args:    fileArgument("the snapshot"), Annotations: map[string]string{offline: "true"},
		RunE: func(command *cobra.Command, args []string) error {
			o.Snapshot, o.Directory = args[0], t.dataDirectory
			o.Progress = func(part string) { fmt.Fprintln(command.ErrOrStderr(), part) }
			if (o.SHA256 == "") != unverified {
				return errors.New("one of --sha256 and --unverified is required: the SHA-256 that 'quorate etcd snapshot save' " +
					"has printed, or the confirmation that the file may have been replaced")
			}
			return t.restore(command.Context(), o)
		},
	}
	flags := command.Flags()
	t.restoreFlags(flags, &o)
	flags.StringVar(&o.SHA256, "sha256", "",
		"SHA-256 that the snapshot must have, as 'snapshot save' and 'snapshot status' print it")
	flags.BoolVar(&unverified, "unverified", false, "Restore the file without --sha256")
	return command
}

// restoreFlags are the flags for the data directory of a new single-member cluster.
func (t *tool) restoreFlags(flags *pflag.FlagSet, o *snapshot.RestoreOptions) {
	flags.StringVar(&o.Name, "name", config.Default().Member.Name, "Name of the member, its --etcd-name")
	flags.StringVar(&o.PeerURL, "initial-advertise-peer-url", "",
		"Peer URL of the member, its --etcd-initial-advertise-peer-urls; default: none, no other members can join")
	flags.StringVar(&o.Token, "initial-cluster-token", "", "Token of the new etcd cluster; default: random")
	flags.Uint64Var(&o.RevisionBump, "bump-revision", snapshot.DefaultRevisionBump,
		"Number of revisions to skip; must exceed the revisions that the original cluster created after the snapshot")
}

// complete sets the options for which there are no flags.
func complete(o *snapshot.RestoreOptions) error {
	switch {
	case o.Directory == "":
		return errors.New("--data-dir is required: the data directory to create")
	case o.PeerURL == "":
		o.PeerURL = "unix://no-peers-" + strings.ToLower(rand.Text()) // as for a member without peer URLs
	}
	if o.Token == "" {
		o.Token = rand.Text()
	}
	return nil
}

func (t *tool) restore(ctx context.Context, o snapshot.RestoreOptions) error {
	if err := complete(&o); err != nil {
		return err
	}
	info, err := snapshot.Restore(ctx, o)
	if err != nil {
		return fmt.Errorf("restore %s: %w", o.Snapshot, err)
	}
	return t.printSnapshot(o.Snapshot, info)
}
