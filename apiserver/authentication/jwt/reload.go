package jwt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

// The intervals of kube-apiserver, except healthInterval: looking whether the issuers' keys have arrived costs nothing.
const (
	pollInterval   = time.Minute // the file is read again even if no change was signalled
	healthTimeout  = time.Minute // of the new issuers
	healthInterval = 100 * time.Millisecond
	retireDelay    = time.Minute      // after which requests no longer use replaced issuers
	metricsDelay   = 30 * time.Second // after which they no longer write metrics
)

// errRetried means that the same content may be accepted later, so that it is tried again.
var errRetried = errors.New("will be retried")

// Files implements serving.Reloadable.
func (i *Issuers) Files() []string {
	if file := i.options.Configuration.file; file != "" {
		return []string{file}
	}
	return nil
}

// Reload implements serving.Reloadable. Run does the work, because it waits for the issuers.
func (i *Issuers) Reload() error {
	select {
	case i.changed <- struct{}{}:
	default:
	}
	return nil
}

// Run reloads the configuration when its file changes, until ctx ends. A configuration with errors, or with an issuer
// whose keys cannot be fetched, changes nothing.
func (i *Issuers) Run(ctx context.Context) {
	defer func() { i.current.Load().cancel() }()
	c := i.options.Configuration
	if c.file == "" {
		<-ctx.Done()
		return
	}
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo(i.options.ServerID, string(c.data))
	read := c.data
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.changed:
		case <-i.options.Clock.After(pollInterval):
		}
		read = i.follow(ctx, read)
	}
}

// follow reads the file and, if it differs from the content that was read last, replaces the issuers. It returns the
// content that is not to be tried again.
func (i *Issuers) follow(ctx context.Context, last []byte) []byte {
	data, err := os.ReadFile(i.options.Configuration.file)
	if err == nil && bytes.Equal(data, last) {
		return last
	}
	if err != nil {
		err = fmt.Errorf("read: %w, %w", err, errRetried)
	} else {
		err = i.replace(ctx, data)
	}
	if err == nil {
		i.options.Logger.Info("Reloaded the authentication configuration", "file", i.options.Configuration.file)
		metrics.RecordAuthenticationConfigAutomaticReloadSuccess(i.options.ServerID, string(data))
		return data
	}
	if ctx.Err() != nil {
		return last
	}
	i.options.Logger.Error(err, "Failed to reload the authentication configuration; the previous one stays in use",
		"file", i.options.Configuration.file)
	metrics.RecordAuthenticationConfigAutomaticReloadFailure(i.options.ServerID)
	if errors.Is(err, errRetried) {
		return last
	}
	return data
}

// replace replaces the issuers when the new ones are usable.
func (i *Issuers) replace(ctx context.Context, data []byte) error {
	content, err := decode(data)
	if err != nil {
		return err
	}
	if err := i.options.Configuration.checkReload(content, i.options.ServiceAccountIssuers); err != nil {
		return err
	}
	next, err := i.build(context.WithoutCancel(ctx), content)
	if err != nil {
		return fmt.Errorf("%w, %w", err, errRetried)
	}
	if err := i.awaitHealthy(ctx, next); err != nil {
		next.cancel()
		return fmt.Errorf("%w, %w", err, errRetried)
	}
	old := i.current.Swap(next)
	i.options.Changed()
	go i.retire(ctx, old, old.urls.Difference(next.urls))
	return nil
}

// awaitHealthy waits until the keys of all issuers have been fetched.
func (i *Issuers) awaitHealthy(ctx context.Context, next *issuers) error {
	timeout := i.options.Clock.After(healthTimeout)
	for {
		err := next.health()
		if err == nil {
			return nil
		}
		select {
		case <-i.options.Clock.After(healthInterval):
		case <-timeout:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// retire ends replaced issuers when no request can use them any more, and drops the metrics of those that are gone.
func (i *Issuers) retire(ctx context.Context, old *issuers, removed sets.Set[string]) {
	i.sleep(ctx, retireDelay)
	old.cancel()
	i.sleep(ctx, metricsDelay)
	for url := range removed {
		if !i.current.Load().urls.Has(url) {
			oidc.DeleteJWKSFetchMetrics(url, i.options.ServerID)
		}
	}
}

func (i *Issuers) sleep(ctx context.Context, delay time.Duration) {
	select {
	case <-i.options.Clock.After(delay):
	case <-ctx.Done():
	}
}
