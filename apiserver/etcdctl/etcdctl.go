// Package etcdctl implements the command `quorate etcd`. It shows the status of a running etcd, manages its alarms,
// defragments it and saves snapshots. It also creates data directories from snapshots. The etcd may be the embedded
// member of an API server on the same machine.
//
// test/space runs these commands with a full database.
package etcdctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"quorate.dev/apiserver/etcd"
	"quorate.dev/terminal"
)

// quickTimeout bounds commands that do not move data.
const quickTimeout = 10 * time.Second

// retries limits the attempts of a request. With the client's default of 100, a timeout would hide the reason of the
// failure.
const retries = 3

// tool is one invocation of the command.
type tool struct {
	out io.Writer

	dataDirectory string
	endpoints     []string
	tls           transport.TLSInfo
	timeout       time.Duration // 0: the default of the command
	format        string        // empty or "json"
}

// Run runs the command `quorate etcd`.
func Run(ctx context.Context, args []string) error {
	command := newCommand(terminal.Stdout())
	command.SetArgs(args)
	return command.ExecuteContext(ctx)
}

// Command returns the command `quorate etcd`, for the reference of its flags.
func Command() *cobra.Command { return newCommand(io.Discard) }

func newCommand(out io.Writer) *cobra.Command {
	t := &tool{out: out}
	command := &cobra.Command{
		Use:         "etcd",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "quorate etcd"},
		Short:       "Manage a running etcd",
		Long: "Manage a running etcd: the embedded member of an API server on this machine, given by its data directory,\n" +
			"or any etcd, given by its URLs.",
		Example: "  quorate etcd status --data-dir /var/lib/quorate/etcd\n" +
			"  quorate etcd defrag --endpoints https://10.0.0.1:2379 --cacert ca.crt --cert client.crt --key client.key",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error { return t.validate(command) },
	}
	command.SetOut(out)
	command.CompletionOptions.DisableDefaultCmd = true
	flags := command.PersistentFlags()
	flags.StringVar(&t.dataDirectory, "data-dir", "",
		"Data directory of an API server's embedded member (its --etcd-data-dir)")
	flags.StringSliceVar(&t.endpoints, "endpoints", nil, "Client URLs of etcd members")
	flags.StringVar(&t.tls.TrustedCAFile, "cacert", "", "Authority of the certificates of --endpoints")
	flags.StringVar(&t.tls.CertFile, "cert", "", "Client certificate for --endpoints")
	flags.StringVar(&t.tls.KeyFile, "key", "", "Key of --cert")
	flags.DurationVar(&t.timeout, "timeout", 0,
		"Time limit of the command (default 10s; none for defrag, snapshot, restore and recover)")
	flags.StringVarP(&t.format, "output", "o", "", "Output format: json; default: a table")
	command.AddCommand(t.statusCommand(), t.alarmCommand(), t.defragCommand(), t.snapshotCommand(), t.restoreCommand(),
		t.recoverCommand())
	return command
}

// offline is the annotation of commands that do not connect to a running etcd.
const offline = "offline"

// group returns a command that has only subcommands. RunE makes an unknown subcommand an error; without it, cobra would
// print the help and exit successfully.
func group(name, short string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs, Annotations: map[string]string{offline: "true"},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
}

func (t *tool) validate(command *cobra.Command) error {
	switch {
	case t.format != "" && t.format != "json":
		return fmt.Errorf("--output %q must be json", t.format)
	case command.Annotations[offline] != "":
		return nil
	case t.dataDirectory == "" && len(t.endpoints) == 0:
		return errors.New("--data-dir or --endpoints is required")
	case t.dataDirectory != "" && len(t.endpoints) > 0:
		return errors.New("--data-dir and --endpoints are mutually exclusive")
	}
	return nil
}

// limited returns a context with the timeout of --command-timeout, or else the standard timeout. 0 means no timeout.
func (t *tool) limited(ctx context.Context, standard time.Duration) (context.Context, context.CancelFunc) {
	if t.timeout > 0 {
		standard = t.timeout
	}
	if standard == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, standard)
}

// configuration returns the configuration of etcd clients.
func (t *tool) configuration(ctx context.Context) (clientv3.Config, error) {
	configuration := clientv3.Config{Endpoints: t.endpoints}
	var err error
	switch {
	case t.dataDirectory != "":
		configuration, err = etcd.LocalConfig(ctx, t.dataDirectory)
	case t.tls.TrustedCAFile != "" || t.tls.CertFile != "" || t.tls.KeyFile != "":
		configuration.TLS, err = t.tls.ClientConfig()
	}
	configuration.Logger, configuration.MaxUnaryRetries = zap.NewNop(), retries
	configuration.DialOptions = append(configuration.DialOptions, grpc.WithChainUnaryInterceptor(failFast))
	return configuration, err
}

// failFast is a grpc.UnaryClientInterceptor. It makes requests fail immediately, with the reason why there is no
// connection. By default, etcd's client waits for a connection until the request times out.
func failFast(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(ctx, method, request, reply, connection, append(options, grpc.WaitForReady(false))...)
}

func (t *tool) connect(ctx context.Context) (*clientv3.Client, error) {
	configuration, err := t.configuration(ctx)
	if err != nil {
		return nil, err
	}
	return clientv3.New(configuration)
}

// name returns the name of an endpoint in output: the data directory if the user has specified one, otherwise the URL.
func (t *tool) name(endpoint string) string {
	if t.dataDirectory != "" {
		return t.dataDirectory
	}
	return endpoint
}

// memberStatus returns the status of a member. The timeout is short, because a member can respond without a quorum.
func (t *tool) memberStatus(ctx context.Context, client *clientv3.Client, endpoint string) (etcd.Status, error) {
	ctx, cancel := t.limited(ctx, quickTimeout)
	defer cancel()
	status, err := etcd.MemberStatus(ctx, client, endpoint)
	if err != nil {
		return status, failed("get the status", t.name(endpoint), errors.Unwrap(err))
	}
	return status, nil
}

// failed returns an error that names the endpoint, with the message of a gRPC status but not its code.
func failed(what, endpoint string, err error) error {
	if s, ok := status.FromError(err); ok {
		err = errors.New(s.Message())
	}
	return fmt.Errorf("%s: %s: %w", endpoint, what, err)
}
