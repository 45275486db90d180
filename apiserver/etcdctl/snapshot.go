package etcdctl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/v3/snapshot"
	"go.uber.org/zap"
)

// saved is the result in JSON.
type saved struct {
	File      string `json:"file"`
	SizeBytes int64  `json:"sizeBytes"`
	Version   string `json:"version"` // of the storage
}

func (t *tool) snapshotCommand() *cobra.Command {
	command := &cobra.Command{Use: "snapshot", Short: "Save a member's database", Args: cobra.NoArgs}
	command.AddCommand(&cobra.Command{
		Use: "save FILE", Short: "Save a member's database to a file, for 'etcdutl snapshot restore'", Args: fileArgument,
		RunE: func(command *cobra.Command, args []string) error { return t.snapshot(command.Context(), args[0]) },
	})
	return command
}

func fileArgument(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("snapshot save takes one argument, the file to write; got %d", len(args))
	}
	return nil
}

// snapshot saves a database. The file appears only when it is complete and its checksum is correct.
func (t *tool) snapshot(ctx context.Context, file string) error {
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
	received := file + ".unverified"
	defer os.Remove(received)
	version, err := snapshot.SaveWithVersion(ctx, zap.NewNop(), configuration, received)
	if err != nil {
		return failed("saving a snapshot", t.name(configuration.Endpoints[0]), err)
	}
	size, err := verify(received)
	if err != nil {
		return fmt.Errorf("verify the snapshot: %w", err)
	}
	if err := os.Rename(received, file); err != nil {
		return err
	}
	s := saved{File: file, SizeBytes: size, Version: version}
	row := []string{s.File, mebibytes(s.SizeBytes), orNone(s.Version)}
	return t.print(s, []string{"FILE", "SIZE", "STORAGE VERSION"}, [][]string{row})
}

// reach returns an error if the member does not answer, because saving a snapshot has no timeout.
func (t *tool) reach(ctx context.Context) error {
	client, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = t.memberStatus(ctx, client, client.Endpoints()[0])
	return err
}

// verify checks a snapshot against the checksum at its end, and returns the size of the database.
func verify(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, info.Size()-sha256.Size); err != nil {
		return 0, err
	}
	want, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return 0, errors.New("checksum mismatch")
	}
	return info.Size(), nil
}
