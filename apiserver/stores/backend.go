package stores

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/storage"
)

// backend is an etcd: the embedded member or an external etcd.
type backend struct {
	// Client is the client of the etcd.
	Client *clientv3.Client
	// member is nil with an external etcd.
	member *etcd.Member
	// polled is the use of an external etcd's database; nil until it is measured.
	polled atomic.Pointer[storage.Space]
}

// openBackend starts the embedded member or creates the client of an external etcd. Only the client uses dialers and
// options, because the members of a cluster connect to each other directly.
func openBackend(
	ctx context.Context, c *config.Config, dialers egress.Dialers, logger logr.Logger, options []grpc.DialOption,
) (*backend, error) {
	if c.Member.DataDirectory != "" {
		member, err := etcd.Start(ctx, c.Member, etcd.WithLogger(logger.WithName("etcd")))
		if err != nil {
			return nil, fmt.Errorf("start the etcd member: %w", err)
		}
		return &backend{Client: member.Client(), member: member}, nil
	}
	return connectBackend(c.Etcd, c.Etcd.Servers, dialers, options)
}

// connectBackend creates the client of an external etcd. It uses the egress dialer for etcd if there is one.
func connectBackend(
	e config.Etcd, servers []string, dialers egress.Dialers, options []grpc.DialOption,
) (*backend, error) {
	secure, err := clientTLS(e)
	if err != nil {
		return nil, err
	}
	if dialers.Etcd != nil {
		options = append(slices.Clip(options), grpc.WithContextDialer(dialers.DialEtcd))
	}
	client, err := clientv3.New(clientv3.Config{
		DialOptions:          options,
		Endpoints:            servers,
		TLS:                  secure,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		PermitWithoutStream:  true,
		MaxCallRecvMsgSize:   2 << 30,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return &backend{Client: client}, nil
}

// clientTLS returns the TLS settings of etcd's clients, or nil if no files are configured.
func clientTLS(e config.Etcd) (*tls.Config, error) {
	if e.CAFile == "" && e.CertFile == "" {
		return nil, nil
	}
	files := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
	secure, err := files.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read --etcd-cafile, --etcd-certfile and --etcd-keyfile: %w", err)
	}
	return secure, nil
}

// awaitReady waits until the embedded member can serve reads. With an external etcd it returns immediately. It does not
// receive from failed, which delivers an error once: Watch needs the error for the exit code, and ends ctx.
func (b *backend) awaitReady(ctx context.Context) error {
	if b.member == nil {
		return nil
	}
	select {
	case <-b.member.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed returns a channel that receives the error of a member that has stopped unexpectedly; nil with an external
// etcd.
func (b *backend) failed() <-chan error {
	if b.member == nil {
		return nil
	}
	return b.member.Err()
}

// close closes the client or stops the member. A member that is the leader first transfers leadership to another
// member.
func (b *backend) close(ctx context.Context) error {
	if b.member == nil {
		return b.Client.Close()
	}
	return b.member.Stop(ctx)
}

// space returns the use of the database. It is zero until the database of an external etcd has been measured.
func (b *backend) space() storage.Space {
	if b.member != nil {
		return storage.Space(b.member.Space())
	}
	if polled := b.polled.Load(); polled != nil {
		return *polled
	}
	return storage.Space{}
}

// pollSpace measures the use of an external etcd's database at the interval until ctx ends; 0 disables it.
func (b *backend) pollSpace(ctx context.Context, store *storage.Store, interval time.Duration, clock clock.WithTicker) {
	if b.member == nil && interval > 0 {
		store.PollSpace(ctx, interval, clock, func(found storage.Space) { b.polled.Store(&found) })
	}
}

// endpointChecks returns a health check for each endpoint of etcd.
func (b *backend) endpointChecks() []func(context.Context) error {
	if b.member != nil {
		return []func(context.Context) error{func(ctx context.Context) error {
			_, err := b.Client.Get(ctx, "health")
			return err
		}}
	}
	var checks []func(context.Context) error
	for _, endpoint := range b.Client.Endpoints() {
		checks = append(checks, func(ctx context.Context) error {
			_, err := b.Client.Status(ctx, endpoint)
			return err
		})
	}
	return checks
}
