package apiserver

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

// backend is the etcd of this server: an embedded member or an external etcd.
type backend struct {
	client *clientv3.Client
	member *etcd.Member                  // nil: external
	polled atomic.Pointer[storage.Space] // of an external etcd; nil: not measured yet
}

// openBackend starts the embedded member or creates the client of an external etcd. Only the latter uses dialers and
// options: the members of a cluster are connected directly.
func openBackend(
	ctx context.Context, c *config.Config, dialers egress.Dialers, logger logr.Logger, options []grpc.DialOption,
) (*backend, error) {
	if c.Member.DataDirectory != "" {
		member, err := etcd.Start(ctx, c.Member, etcd.WithLogger(logger.WithName("etcd")))
		if err != nil {
			return nil, fmt.Errorf("start the etcd member: %w", err)
		}
		return &backend{client: member.Client(), member: member}, nil
	}
	return connectBackend(c.Etcd, c.Etcd.Servers, dialers, options)
}

// connectBackend creates the client of an external etcd, with the dialer for etcd if there is one.
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
	return &backend{client: client}, nil
}

// clientTLS returns nil if no files are configured.
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

// awaitReady waits until the embedded member can serve reads.
func (b *backend) awaitReady(ctx context.Context) error {
	if b.member == nil {
		return nil
	}
	select {
	case <-b.member.Ready():
		return nil
	case err := <-b.member.Err():
		return fmt.Errorf("the etcd member stopped: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed returns a channel that delivers the error of a member that stops unexpectedly.
func (b *backend) failed() <-chan error {
	if b.member == nil {
		return nil
	}
	return b.member.Err()
}

// close transfers leadership to another member, if this one has it, and stops the member or the client.
func (b *backend) close(ctx context.Context) error {
	if b.member == nil {
		return b.client.Close()
	}
	return b.member.Stop(ctx)
}

// space returns the use of the database.
func (b *backend) space() storage.Space {
	if b.member != nil {
		return storage.Space(b.member.Space())
	}
	if polled := b.polled.Load(); polled != nil {
		return *polled
	}
	return storage.Space{}
}

// pollSpace measures the use of an external etcd's database until ctx ends. It does nothing if the interval is 0.
func (b *backend) pollSpace(ctx context.Context, store *storage.Store, interval time.Duration, clock clock.WithTicker) {
	if b.member == nil && interval > 0 {
		store.PollSpace(ctx, interval, clock, func(found storage.Space) { b.polled.Store(&found) })
	}
}

// members returns a health check for each endpoint of etcd, for ComponentStatus.
func (b *backend) members() []func(context.Context) error {
	if b.member != nil {
		return []func(context.Context) error{func(ctx context.Context) error {
			_, err := b.client.Get(ctx, "health")
			return err
		}}
	}
	var checks []func(context.Context) error
	for _, endpoint := range b.client.Endpoints() {
		checks = append(checks, func(ctx context.Context) error {
			_, err := b.client.Status(ctx, endpoint)
			return err
		})
	}
	return checks
}
