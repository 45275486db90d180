package etcdctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/snapshot"
)

// recovery replaces the data directory of a member whose cluster has permanently lost its quorum with the data
// directory of a new, single-member cluster. It can be interrupted at any step and repeated: it renames the former data
// directory first, deletes it last, and creates the new one with a rename when it is complete.
type recovery struct {
	snapshot.RestoreOptions
	uid        string
	resultFile string
}

func (t *tool) recoverCommand() *cobra.Command {
	r := recovery{}
	command := &cobra.Command{
		Use: "recover", Short: "Continue with the data of one member after the loss of the quorum",
		Long: "Continue with the data of one member after the loss of the quorum. The member becomes the only member of a\n" +
			"new etcd cluster. Stop all other members permanently first. Writes that only they have are lost.\n\n" +
			"Revisions continue --bump-revision later, as after 'restore'. The volume needs room for two more copies of the\n" +
			"database. An interrupted recovery can be repeated.",
		Example: "  quorate etcd recover --data-dir /var/lib/quorate/etcd",
		Args:    cobra.NoArgs, Annotations: map[string]string{offline: "true"},
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, cancel := t.limited(command.Context(), 0)
			defer cancel()
			r.Directory = t.dataDirectory
			r.Progress = func(part string) { fmt.Fprintln(command.ErrOrStderr(), part) }
			return t.recover(ctx, r)
		},
	}
	flags := command.Flags()
	t.restoreFlags(flags, &r.RestoreOptions)
	flags.StringVar(&r.uid, "uid", "",
		"UID of the operation; once it is complete, repeating it with the same UID has no effect")
	flags.StringVar(&r.resultFile, "result-file", "", "File for the result as JSON, such as /dev/termination-log in a pod")
	return command
}

func (t *tool) recover(ctx context.Context, r recovery) error {
	if err := complete(&r.RestoreOptions); err != nil {
		return err
	}
	result, err := r.run(ctx)
	if err != nil {
		return fmt.Errorf("recover %s: %w", r.Directory, err)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	if r.resultFile != "" {
		if err := os.WriteFile(r.resultFile, text, 0o600); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(t.out, "%s\n", text)
	return err
}

func (r *recovery) former() string       { return etcd.BeforeRecovery(r.Directory) }
func (r *recovery) recordFile() string   { return filepath.Clean(r.Directory) + ".recovered.json" }
func (r *recovery) snapshotFile() string { return filepath.Clean(r.Directory) + ".recovery.db" }

// recoveryRecord is the content of recordFile. It is written before the new data directory is created.
type recoveryRecord struct {
	UID    string        `json:"uid"`
	Result format.Result `json:"result"`
}

func (r *recovery) run(ctx context.Context) (format.Result, error) {
	if record, ok := r.record(); ok && r.uid != "" && record.UID == r.uid && !isEmpty(r.Directory) {
		r.Progress("The data directory was recovered already")
		return record.Result, r.removeFormer()
	}
	if err := r.moveFormer(); err != nil {
		return format.Result{}, err
	}
	info, err := r.save(ctx)
	if err != nil {
		return format.Result{}, err
	}
	result := format.Result{Location: r.Directory, Manifest: format.Manifest{
		UID: r.uid, Member: r.Name, Created: time.Now().UTC(), Snapshot: format.Snapshot{
			SizeBytes: info.SizeBytes, SHA256: info.SHA256, Revision: info.Revision, Keys: info.Keys, Version: info.Version,
		},
	}}
	text, err := json.Marshal(recoveryRecord{r.uid, result})
	if err != nil {
		return result, err
	}
	if err := os.WriteFile(r.recordFile(), text, 0o600); err != nil {
		return result, err
	}
	r.Snapshot = r.snapshotFile()
	if _, err := snapshot.Restore(ctx, r.RestoreOptions); err != nil {
		return result, err
	}
	return result, r.removeFormer()
}

func (r *recovery) record() (record recoveryRecord, ok bool) {
	text, err := os.ReadFile(r.recordFile())
	return record, err == nil && json.Unmarshal(text, &record) == nil
}

// moveFormer renames the data directory, unless an interrupted recovery has already done so.
func (r *recovery) moveFormer() error {
	if isEmpty(r.Directory) {
		if isEmpty(r.former()) {
			return errors.New("there is no data")
		}
		return nil
	}
	if !isEmpty(r.former()) {
		if _, ok := r.record(); !ok {
			return fmt.Errorf("both %s and %s have data: remove the one that you do not need", r.Directory, r.former())
		}
		if err := r.removeFormer(); err != nil { // it remains from a recovery that has created the present data
			return err
		}
	}
	return os.Rename(r.Directory, r.former())
}

func (r *recovery) removeFormer() error {
	return errors.Join(os.RemoveAll(r.former()), os.RemoveAll(r.snapshotFile()))
}

// save starts the former member without other members. The member replays its log up to the last entry that it knows to
// be committed. Then save saves a snapshot.
func (r *recovery) save(ctx context.Context) (info snapshot.Info, err error) {
	r.Progress("Reading the data of the member")
	flags := config.Default().Member
	flags.DataDirectory = r.former()
	member, err := etcd.Start(ctx, flags, etcd.WithoutFormerMembers())
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, member.Stop(context.WithoutCancel(ctx))) }()
	select {
	case <-member.Ready():
	case err := <-member.Err():
		return info, err
	case <-ctx.Done():
		return info, context.Cause(ctx)
	}
	client, err := etcd.LocalConfig(ctx, r.former())
	if err != nil {
		return info, err
	}
	client.Logger = zap.NewNop()
	return snapshot.Save(ctx, client, r.snapshotFile())
}

// isEmpty reports whether a directory has no files or does not exist.
func isEmpty(directory string) bool {
	entries, err := os.ReadDir(directory)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}
