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

// These are kube-apiserver's intervals, except healthInterval: checking whether the issuers' keys have been fetched
// costs nothing.
const (
	// pollInterval is the interval at which the file is read even if no change has been reported.
	pollInterval = time.Minute
	// healthTimeout bounds the time in which the keys of new issuers must be fetched.
	healthTimeout  = time.Minute
	healthInterval = 100 * time.Millisecond
	// retireDelay is the time after which no request uses replaced issuers.
	retireDelay = time.Minute
	// metricsDelay is the time, after retireDelay, after which replaced issuers no longer write metrics.
	metricsDelay = 30 * time.Second
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

// Reload implements serving.Reloadable. It only notifies Run, because replacing the issuers waits for their keys.
func (i *Issuers) Reload() error {
	select {
	case i.changed <- struct{}{}:
	default:
	}
	return nil
}

// Run reloads the configuration when its file changes, until ctx ends. A configuration that is invalid, or that has an
// issuer whose keys cannot be fetched, has no effect.
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

// follow reads the file and, if its content differs from last, replaces the issuers. It returns the content that must
// not be tried again.
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

// replace replaces the issuers with the issuers of a configuration when the keys of all new issuers have been fetched.
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

// retire ends replaced issuers when no request can use them any more, and drops the metrics of removed issuers.
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
