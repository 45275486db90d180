package encryption

import (
	"context"
	"errors"
	"fmt"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"

	"quorate.dev/panics"
)

const (
	// reloadInterval is the default interval at which Run looks for changes. kube-apiserver's interval is a minute.
	reloadInterval = 10 * time.Second
	// healthInterval is the interval at which the KMS plugins of a changed file are checked until they are healthy.
	healthInterval = 100 * time.Millisecond
	// minHealthWait is the minimum time that the KMS plugins of a changed file have to become healthy.
	minHealthWait = 10 * time.Second
)

// errChecks has kube-apiserver's message for a configuration whose health checks are not combined into one.
var errChecks = errors.New("failed to start kms encryption config hot reload controller. only 1 health check should " +
	"be available when reload is enabled")

// Reloads reports whether Run must be called.
func (c *Configuration) Reloads() bool { return c.reloads != nil }

// Run loads the file again when it has changed, until ctx ends, and calls reloaded after each change: values that
// could be decrypted before may have become unreadable. A file that is not valid, or whose KMS plugins are unhealthy,
// is ignored and tried again. Run takes the place of upstream's DynamicEncryptionConfigContent, which does not notify
// the watch caches of a change.
func (c *Configuration) Run(ctx context.Context, reloaded func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		var changed bool
		err := panics.Catch(func() (err error) {
			changed, err = c.reload(ctx)
			return err
		})
		switch {
		case err != nil && ctx.Err() == nil:
			metrics.RecordEncryptionConfigAutomaticReloadFailure(c.options.Server)
			utilruntime.HandleErrorWithContext(ctx, err, "error processing encryption config file", "file", c.options.File)
		case changed:
			metrics.RecordEncryptionConfigAutomaticReloadSuccess(c.options.Server, c.hash)
			reloaded()
		}
	}, c.options.Interval)
}

// reload loads the file if its content has changed. The connections to the KMS plugins of the new configuration last
// until ctx ends, or until KMSCloseGracePeriod after the next change.
func (c *Configuration) reload(ctx context.Context) (changed bool, err error) {
	hash, err := encryptionconfig.GetEncryptionConfigHash(c.options.File)
	if err != nil || hash == c.hash {
		return false, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		if !changed {
			stop()
		}
	}()
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, c.options.File, true, c.options.Server)
	switch {
	case err != nil:
		return false, err
	case loaded.EncryptionFileContentHash == c.hash: // the file has the former content again
		return false, nil
	case len(loaded.HealthChecks) != 1:
		return false, errChecks
	}
	if err := awaitHealthy(
		ctx, newCheck(loaded.HealthChecks[0]), max(loaded.KMSCloseGracePeriod, minHealthWait),
	); err != nil {
		return false, err
	}
	c.reloads.Set(loaded.Transformers, stop, loaded.HealthChecks[0], loaded.KMSCloseGracePeriod)
	c.hash = loaded.EncryptionFileContentHash
	return true, nil
}

// awaitHealthy waits until a check passes, at most for the given limit.
func awaitHealthy(ctx context.Context, check Check, limit time.Duration) error {
	var unhealthy error
	err := wait.PollUntilContextTimeout(ctx, healthInterval, limit, true, func(ctx context.Context) (bool, error) {
		unhealthy = check.Run(ctx)
		return unhealthy == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the KMS plugins of the changed file are not healthy: %w", errors.Join(err, unhealthy))
	}
	return nil
}
