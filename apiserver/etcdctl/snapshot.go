package etcdctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quorate.dev/apiserver/snapshot"
)

// snapshotFile is the JSON output for a verified snapshot.
type snapshotFile struct {
	File string `json:"file"`
	snapshot.Info
}

func (t *tool) snapshotCommand() *cobra.Command {
	command := group("snapshot", "Save a member's database, or verify a snapshot")
	command.AddCommand(
		&cobra.Command{
			Use: "save FILE", Short: "Save a member's database to a file",
			Long: "Save a member's database to a file. The file is created after the snapshot is complete and verified. It " +
				"has etcd's\nformat, which 'quorate etcd restore' and 'etcdutl snapshot restore' read.",
			Args: fileArgument("the file to write"),
			RunE: func(command *cobra.Command, args []string) error { return t.save(command.Context(), args[0]) },
		},
		&cobra.Command{
			Use: "status FILE", Short: "Verify a snapshot and show its hash, revision, number of keys and size",
			Long: "Verify a snapshot: its checksum, the consistency of its database, and every key. Show its revision, the\n" +
				"number of keys, and the encryption keys that are needed to read its values.",
			Args: fileArgument("the snapshot"), Annotations: map[string]string{offline: "true"},
			RunE: func(command *cobra.Command, args []string) error { return t.verify(command.Context(), args[0]) },
		},
	)
	return command
}

// fileArgument accepts exactly one argument.
func fileArgument(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one argument, %s; got %d", command.Name(), what, len(args))
		}
		return nil
	}
}

// save saves a snapshot of the database to a file.
func (t *tool) save(ctx context.Context, file string) error {
	ctx, cancel := t.limited(ctx, 0)
	defer cancel()
	configuration, err := t.configuration(ctx)
	if err != nil {
		return err
	}
	if len(configuration.Endpoints) != 1 {
		return errors.New("--endpoints must name exactly one member for a snapshot")
	}
	if err := t.reach(ctx); err != nil {
		return err
	}
	info, err := snapshot.Save(ctx, configuration, file)
	if err != nil {
		return failed("save a snapshot", t.name(configuration.Endpoints[0]), err)
	}
	return t.printSnapshot(file, info)
}

// reach returns an error if the member does not respond. It is called first, because saving a snapshot has no timeout.
func (t *tool) reach(ctx context.Context) error {
	client, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = t.memberStatus(ctx, client, client.Endpoints()[0])
	return err
}

// verify verifies a snapshot and prints its hash, revision, number of keys and size.
func (t *tool) verify(ctx context.Context, file string) error {
	info, err := snapshot.Verify(ctx, file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return t.printSnapshot(file, info)
}

func (t *tool) printSnapshot(file string, info snapshot.Info) error {
	row := []string{
		file, mebibytes(info.SizeBytes), strconv.FormatInt(info.Revision, 10), strconv.Itoa(info.Keys), orNone(info.Version),
		orNone(strings.Join(info.EncryptionKeys, ", ")), info.SHA256,
	}
	header := []string{"FILE", "SIZE", "REVISION", "KEYS", "STORAGE VERSION", "ENCRYPTION KEYS", "SHA-256"}
	return t.print(snapshotFile{file, info}, header, [][]string{row})
}
