package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
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

// sealedKeysVariable is the environment variable with the manifest's SealedKeys in base64. The operator seals the
// keys; this process never has them.
const sealedKeysVariable = "QUORATE_SEALED_KEYS"

// signingKeyVariable is the environment variable with the value of --signing-key-file. The operator uses it instead
// of the flag, because images of earlier releases exit when they get an unknown flag; their backups are then not
// signed.
const signingKeyVariable = "QUORATE_SIGNING_KEY_FILE"

// command is one invocation of `quorate backup`, with the values of its flags.
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
	signingKeyFile string

	identitiesFile string
	expected       expectation
	restore        snapshot.RestoreOptions
}

// Run runs the command `quorate backup`.
func Run(ctx context.Context, args []string) error {
	root := newCommand(terminal.Stdout(), terminal.Stderr())
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// Command returns the command `quorate backup` for the generated reference of its flags.
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
	f.StringVar(&c.s3.region, "s3-region", "", "S3 region; default: the bucket's region")
	f.StringVar(&c.s3.caFile, "s3-ca-file", "",
		"Authority of the S3 endpoint's certificate; default: the system's authorities")
	f.BoolVar(&c.s3.pathStyle, "s3-path-style", false, "Put the bucket into the path of URLs instead of the host name")
	f.StringVar(&c.resultFile, "result-file", "", "File for the result as JSON, such as /dev/termination-log in a pod")
	f.DurationVar(&c.timeout, "timeout", 0, "Time limit of the command; default: none")
	f.StringVarP(&c.format, "output", "o", "", "Output format of list: json; default: a table")
	root.AddCommand(c.createCommand(), c.restoreCommand(), c.deleteCommand(), c.listCommand(), c.keyCommand())
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
	f.StringVar(&c.dataDirectory, "data-dir", "",
		"Data directory of an embedded member on this machine, instead of --endpoints")
	f.StringVar(&c.recipientsFile, "recipients-file", "",
		"age recipients to encrypt the backup for; default: not encrypted")
	f.StringVar(&c.namespace, "namespace", "", "Namespace of the cluster, for the manifest")
	f.StringVar(&c.cluster, "cluster", "", "Name of the cluster, for the manifest")
	f.StringVar(&c.keyFingerprint, "service-account-key-fingerprint", "",
		"Fingerprint of the service-account key, for the manifest")
	f.StringVar(&c.signingKeyFile, "signing-key-file", "",
		"Key that signs the backup, as 'quorate backup key' creates it; default: $"+signingKeyVariable+", or not signed")
	return command
}

func (c *command) restoreCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "restore", Short: "Restore a backup into a new data directory", Args: cobra.NoArgs,
		Long: "Restore a backup into a new data directory. A user who can write to the storage can replace a backup: it is " +
			"restored\nonly if it has the --manifest-sha256 or is signed by the --verification-key that 'quorate backup " +
			"create' has printed,\nor with --unverified. A signature shows that the key's owner has created the backup for " +
			"its path; an older backup of\nthe same path has a valid signature, too. Nothing is written to the data directory " +
			"before everything is verified.",
		RunE: func(command *cobra.Command, _ []string) error { return c.run(command.Context(), c.restoreBackup) },
	}
	f := command.Flags()
	c.pathFlags(f)
	f.StringVar(&c.expected.manifestSHA256, "manifest-sha256", "",
		"SHA-256 that "+format.ManifestFile+" of the backup must have, in hexadecimal")
	f.StringSliceVar(&c.expected.keys, "verification-key", nil,
		"Key that must have signed the backup, such as ed25519:...; of several keys, one must have signed it")
	f.StringVar(&c.expected.storedSHA256, "stored-sha256", "",
		"SHA-256 that the stored snapshot must have, in hexadecimal, for backups of earlier releases. The keys that are "+
			"contained in the backup are not restored")
	f.BoolVar(&c.expected.unverified, "unverified", false,
		"Restore the stored backup without verification, even if it is not the backup that was created")
	f.StringVar(&c.identitiesFile, "identities-file", "", "age identities that decrypt the backup")
	f.StringVar(&c.restore.Directory, "data-dir", "", "Data directory to create")
	f.StringVar(&c.restore.Name, "name", "default", "Name of the member, its --etcd-name")
	f.StringVar(&c.restore.PeerURL, "initial-advertise-peer-url", "http://127.0.0.1:2380", "Peer URL of the member")
	f.StringVar(&c.restore.Token, "initial-cluster-token", uuid.NewString(),
		"Token of the new etcd cluster; default: random")
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
			c.path = "." // list does not use the path, which must be valid
			return c.run(command.Context(), c.list)
		},
	}
}

func (c *command) keyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "key FILE", Short: "Create a key that signs backups, and print its verification key", Args: cobra.ExactArgs(1),
		Long: "Create a key that signs backups, unless the file exists, and print the key that verifies its signatures. " +
			"The file is\nsecret: users who can write to the storage of backups must not be able to read it. The verification " +
			"key is not secret.",
		Example: "  quorate backup key backup-signing.key",
		RunE:    func(_ *cobra.Command, args []string) error { return c.printKey(args[0]) },
	}
}

// printKey prints the verification key of the signing key in a file. It creates the key if the file does not exist.
func (c *command) printKey(file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = format.NewSigningKey(); err == nil {
			err = write(file, bytes.NewReader(text))
		}
	}
	if err != nil {
		return err
	}
	key, err := format.ParseSigningKey(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	_, err = fmt.Fprintln(c.out, format.VerificationKeyOf(key))
	return err
}

func (c *command) pathFlags(f *pflag.FlagSet) {
	f.StringVar(&c.path, "path", "",
		"Path of the backup in the directory or bucket, such as default/demo/monday. Required")
	f.StringVar(&c.uid, "uid", "", "UID of the operation: create and restore resume an interrupted attempt with "+
		"the same UID, and delete keeps backups that were created with another UID; default: none")
	f.StringVar(&c.scratch, "scratch", "", "Directory for temporary files; default: the system's temporary directory")
}

// run opens the store and calls do with it, with the time limit of --timeout.
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
	key, err := c.signingKey()
	if err != nil {
		return err
	}
	if c.uid == "" {
		c.uid = uuid.NewString()
	}
	creation := &creation{
		store: s, path: c.path, etcd: config, scratch: c.scratch, recipients: recipients, key: key,
		now: time.Now, log: c.logf,
		manifest: format.Manifest{
			UID: c.uid, Namespace: c.namespace, Cluster: c.cluster, ServiceAccountKey: c.keyFingerprint, SealedKeys: sealed,
		},
	}
	result, err := creation.create(ctx)
	if err != nil {
		return err
	}
	return c.report(result)
}

// signingKey returns the key that signs the backup, nil if none is configured.
func (c *command) signingKey() (ed25519.PrivateKey, error) {
	text, err := readOptional(cmp.Or(c.signingKeyFile, os.Getenv(signingKeyVariable)))
	if err != nil || text == nil {
		return nil, err
	}
	return format.ParseSigningKey(text)
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
	if err := c.expected.check(); err != nil {
		return err
	}
	identities, err := readOptional(c.identitiesFile)
	if err != nil {
		return err
	}
	switch record, err := c.restored(); {
	case err != nil:
		return err
	case record != nil && c.expected.manifestSHA256 != "" && c.expected.manifestSHA256 != record.Result.ManifestSHA256:
		return c.errRestored(record)
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
	d := download{store: s, path: c.path, scratch: scratch, identities: identities, expected: c.expected, log: c.logf}
	result, file, err := d.fetch(ctx)
	if err != nil {
		return err
	}
	if result.Verification == format.Unverified {
		c.logf("Warning: nothing shows that this backup is the one that was created")
	}
	c.restore.Snapshot, c.restore.Progress = file, func(part string) { c.logf("%s", part) }
	if err := c.recordRestore(result); err != nil {
		return err
	}
	if _, err := snapshot.Restore(ctx, c.restore); err != nil {
		return err
	}
	return c.report(result)
}

// restoreRecord records a completed restore, so that a repeated process can report the same result. It is written next
// to the data directory before the data directory gets its final name.
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
	// The record must be durable before the data directory exists: with a data directory but no record, a repeated
	// process could not continue. Both are in the same parent directory, so that the directory entries become durable
	// together.
	f, err := os.OpenFile(c.recordFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// restored returns the record of an earlier process that restored the data directory for the same UID. It returns nil
// if the data directory is empty, and an error if it has other data. The record is replaced only while the data
// directory is empty, so that it always describes the data there.
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
		return nil, c.errRestored(record)
	}
	return record, nil
}

func (c *command) errRestored(record *restoreRecord) error {
	return fmt.Errorf("%s already has the backup %s: a backup is restored only into a new data directory",
		c.restore.Directory, record.Result.Location)
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

// readOptional reads a file. It returns nil if the name is empty.
func readOptional(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	return os.ReadFile(name) //nolint:gosec // the user of the command names the file
}
