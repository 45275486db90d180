package backup

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/snapshot"
	"quorate.dev/terminal"
)

// sealedKeysVariable has the manifest's SealedKeys in base64. The operator seals them; the process never has the keys.
const sealedKeysVariable = "QUORATE_SEALED_KEYS"

// command is one invocation.
type command struct {
	out, log io.Writer

	directory  string
	s3         s3Options
	path       string
	resultFile string
	timeout    time.Duration
	format     string
	scratch    string
	uid        string

	endpoints      []string
	tls            transport.TLSInfo
	dataDirectory  string
	recipientsFile string
	namespace      string
	cluster        string
	keyFingerprint string

	identitiesFile string
	restore        snapshot.RestoreOptions
}

// Run is the command `quorate backup`.
func Run(ctx context.Context, args []string) error {
	root := newCommand(terminal.Stdout(), terminal.Stderr())
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// Command returns the command `quorate backup`, for the reference of its flags.
func Command() *cobra.Command { return newCommand(io.Discard, io.Discard) }

func newCommand(out, log io.Writer) *cobra.Command {
	c := &command{out: out, log: log}
	root := &cobra.Command{
		Use:         "backup",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "quorate backup"},
		Short:       "Create, list, restore and delete backups",
		Long: "Create, list, restore and delete backups in a directory or in S3-compatible storage. S3 credentials are\n" +
			"read from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(out)
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&c.directory, "directory", "", "Directory that contains backups")
	f.StringVar(&c.s3.endpoint, "s3-endpoint", "", "URL of S3-compatible storage, instead of --directory")
	f.StringVar(&c.s3.bucket, "s3-bucket", "", "S3 bucket")
	f.StringVar(&c.s3.region, "s3-region", "", "S3 region; default: that of the bucket")
	f.StringVar(&c.s3.caFile, "s3-ca-file", "", "Authority of the S3 endpoint's certificate; default: those of the system")
	f.BoolVar(&c.s3.pathStyle, "s3-path-style", false, "Put the bucket into the path of URLs instead of the host name")
	f.StringVar(&c.resultFile, "result-file", "", "File for the result as JSON, such as /dev/termination-log in a pod")
	f.DurationVar(&c.timeout, "timeout", 0, "Time limit of the command; default: none")
	f.StringVarP(&c.format, "output", "o", "", "Output format of list: json; default: a table")
	root.AddCommand(c.createCommand(), c.restoreCommand(), c.deleteCommand(), c.listCommand())
	return root
}

func (c *command) createCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "create", Short: "Create a backup of a running etcd", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return c.run(command.Context(), c.create) },
	}
	f := command.Flags()
	c.pathFlags(f)
	f.StringSliceVar(&c.endpoints, "endpoints", nil, "Client URLs of the etcd members")
	f.StringVar(&c.tls.TrustedCAFile, "cacert", "", "Authority of the certificates of --endpoints")
	f.StringVar(&c.tls.CertFile, "cert", "", "Client certificate for --endpoints")
	f.StringVar(&c.tls.KeyFile, "key", "", "Key of --cert")
	f.StringVar(&c.dataDirectory, "data-dir", "", "Data directory of an embedded member on this machine, instead of --endpoints")
	f.StringVar(&c.recipientsFile, "recipients-file", "", "age recipients to encrypt the backup for; default: not encrypted")
	f.StringVar(&c.namespace, "namespace", "", "Namespace of the cluster, for the manifest")
	f.StringVar(&c.cluster, "cluster", "", "Name of the cluster, for the manifest")
	f.StringVar(&c.keyFingerprint, "service-account-key-fingerprint", "", "Fingerprint of the service-account key, for the manifest")
	return command
}

func (c *command) restoreCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "restore", Short: "Restore a backup into a new data directory", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return c.run(command.Context(), c.restoreBackup) },
	}
	f := command.Flags()
	c.pathFlags(f)
	f.StringVar(&c.identitiesFile, "identities-file", "", "age identities that decrypt the backup")
	f.StringVar(&c.restore.Directory, "data-dir", "", "Data directory to create")
	f.StringVar(&c.restore.Name, "name", "default", "Name of the member, its --etcd-name")
	f.StringVar(&c.restore.PeerURL, "initial-advertise-peer-url", "http://127.0.0.1:2380", "Peer URL of the member")
	f.StringVar(&c.restore.Token, "initial-cluster-token", uuid.NewString(), "Token of the new etcd cluster; default: random")
	f.Lookup("initial-cluster-token").DefValue = ""
	f.Uint64Var(&c.restore.RevisionBump, "bump-revision", snapshot.DefaultRevisionBump,
		"Number of revisions to skip; must exceed the revisions that the original cluster created after the backup")
	return command
}

func (c *command) deleteCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "delete", Short: "Delete a backup", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return c.run(command.Context(), func(ctx context.Context, s store) error { return remove(ctx, s, c.path, c.uid) })
		},
	}
	c.pathFlags(command.Flags())
	return command
}

func (c *command) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the complete backups, oldest first", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c.path = "." // not used
			return c.run(command.Context(), c.list)
		},
	}
}

func (c *command) pathFlags(f *pflag.FlagSet) {
	f.StringVar(&c.path, "path", "", "Path of the backup in the directory or bucket, such as default/demo/monday. Required")
	f.StringVar(&c.uid, "uid", "", "UID of the operation: create and restore resume an interrupted attempt with "+
		"the same UID, and delete keeps backups that were created with another UID; default: none")
	f.StringVar(&c.scratch, "scratch", "", "Directory for temporary files; default: that of the system")
}

// run opens the store and runs an operation on it.
func (c *command) run(ctx context.Context, do func(context.Context, store) error) error {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("timed out after %s", c.timeout))
		defer cancel()
	}
	if !fs.ValidPath(c.path) {
		return fmt.Errorf("--path %q must be a relative path without . and ..", c.path)
	}
	s, err := c.openStore()
	if err != nil {
		return err
	}
	if err := do(ctx, s); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	return nil
}

func (c *command) openStore() (store, error) {
	switch {
	case (c.directory == "") == (c.s3.endpoint == ""):
		return nil, errors.New("one of --directory and --s3-endpoint is required")
	case c.directory != "":
		return openDirectory(c.directory)
	case c.s3.bucket == "":
		return nil, errors.New("--s3-bucket is required")
	}
	return openBucket(c.s3)
}

func (c *command) create(ctx context.Context, s store) error {
	config, err := c.etcdConfig(ctx)
	if err != nil {
		return err
	}
	recipients, err := readOptional(c.recipientsFile)
	if err != nil {
		return err
	}
	sealed, err := base64.StdEncoding.DecodeString(os.Getenv(sealedKeysVariable))
	if err != nil {
		return fmt.Errorf("$%s is not base64", sealedKeysVariable)
	}
	if c.uid == "" {
		c.uid = uuid.NewString()
	}
	creation := &creation{
		store: s, path: c.path, etcd: config, scratch: c.scratch, recipients: recipients, now: time.Now, log: c.logf,
		manifest: format.Manifest{
			UID: c.uid, Namespace: c.namespace, Cluster: c.cluster, ServiceAccountKey: c.keyFingerprint, SealedKeys: sealed,
		},
	}
	m, err := creation.create(ctx)
	if err != nil {
		return err
	}
	return c.report(format.Result{Location: s.location(c.path), Manifest: m})
}

func (c *command) etcdConfig(ctx context.Context) (clientv3.Config, error) {
	config := clientv3.Config{Endpoints: c.endpoints}
	var err error
	switch {
	case (c.dataDirectory == "") == (len(c.endpoints) == 0):
		return config, errors.New("one of --endpoints and --data-dir is required")
	case c.dataDirectory != "":
		config, err = etcd.LocalConfig(ctx, c.dataDirectory)
	case c.tls.TrustedCAFile != "" || c.tls.CertFile != "":
		config.TLS, err = c.tls.ClientConfig()
	}
	config.Logger, config.DialKeepAliveTime, config.DialKeepAliveTimeout = zap.NewNop(), requestTimeout, requestTimeout
	return config, err
}

func (c *command) restoreBackup(ctx context.Context, s store) error {
	if c.restore.Directory == "" {
		return errors.New("--data-dir is required: the data directory to create")
	}
	identities, err := readOptional(c.identitiesFile)
	if err != nil {
		return err
	}
	switch record, err := c.restored(); {
	case err != nil:
		return err
	case record != nil:
		c.logf("The data directory was restored already")
		return c.report(record.Result)
	}
	scratch, err := os.MkdirTemp(c.scratch, "restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	c.logf("Downloading %s", s.location(c.path))
	m, file, err := fetch(ctx, s, c.path, scratch, identities)
	if err != nil {
		return err
	}
	c.restore.Snapshot, c.restore.Progress = file, func(part string) { c.logf("%s", part) }
	result := format.Result{Location: s.location(c.path), Manifest: m}
	if err := c.recordRestore(result); err != nil {
		return err
	}
	if _, err := snapshot.Restore(c.restore); err != nil {
		return err
	}
	return c.report(result)
}

// restoreRecord is written beside the data directory before the data directory appears.
type restoreRecord struct {
	UID    string        `json:"uid"`
	Result format.Result `json:"result"`
}

func (c *command) recordFile() string { return filepath.Clean(c.restore.Directory) + ".restored.json" }

func (c *command) recordRestore(result format.Result) error {
	text, err := json.Marshal(restoreRecord{c.uid, result})
	if err != nil {
		return err
	}
	// Data without its record cannot be resumed. The name of the file is durable when the data directory's is, in the same
	// parent directory.
	f, err := os.OpenFile(c.recordFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// restored returns the record of an earlier process that restored the data directory for the same UID, nil if the data
// directory is empty, and an error if it has other data. The record is replaced only when the data directory is empty: it
// describes the data in it.
func (c *command) restored() (*restoreRecord, error) {
	entries, err := os.ReadDir(c.restore.Directory)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	record := &restoreRecord{}
	text, err := os.ReadFile(c.recordFile())
	if err != nil || json.Unmarshal(text, record) != nil {
		return nil, fmt.Errorf("%s is not empty: a backup is restored only into a new data directory", c.restore.Directory)
	}
	if c.uid == "" || record.UID != c.uid {
		return nil, fmt.Errorf("%s already has the backup %s: a backup is restored only into a new data directory",
			c.restore.Directory, record.Result.Location)
	}
	return record, nil
}

// columnGap is the number of spaces between columns.
const columnGap = 3

func (c *command) list(ctx context.Context, s store) error {
	entries, err := list(ctx, s, c.logf)
	if err != nil {
		return err
	}
	if c.format == "json" {
		return terminal.PrintJSON(c.out, entries, "  ")
	}
	rows := [][]string{{"PATH", "CREATED", "SIZE", "REVISION", "ENCRYPTED"}}
	for _, e := range entries {
		rows = append(rows, []string{
			e.Path, e.Manifest.Created.Format(time.RFC3339), fmt.Sprintf("%.1f MiB", float64(e.Manifest.StoredBytes)/(1<<20)),
			fmt.Sprint(e.Manifest.Snapshot.Revision), fmt.Sprint(e.Manifest.Encrypted()),
		})
	}
	return terminal.Table(c.out, rows, columnGap)
}

// report prints the result, and writes it to the result file.
func (c *command) report(result format.Result) error {
	if c.resultFile != "" {
		text, err := result.Message()
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.resultFile, text, 0o600); err != nil {
			return err
		}
	}
	return terminal.PrintJSON(c.out, result, "  ")
}

func (c *command) logf(message string, args ...any) { fmt.Fprintf(c.log, message+"\n", args...) }

// readOptional reads a file, or returns nil without a name.
func readOptional(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	return os.ReadFile(name)
}
