package authorization

import (
	"bytes"
	"context"
	"os"
	"reflect"
	"time"

	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
)

// pollInterval is the interval at which the file is read even if no change has been reported, as in kube-apiserver.
const pollInterval = time.Minute

// Files implements serving.Reloadable.
func (a *Authorizer) Files() []string {
	if file := a.options.Configuration.file; file != "" {
		return []string{file}
	}
	return nil
}

// registerMetrics registers the metrics of reloads. It must be called before a reload.
func (a *Authorizer) registerMetrics() {
	if c := a.options.Configuration; c.file != "" {
		metrics.RegisterMetrics()
		metrics.RecordAuthorizationConfigLastConfigInfo(a.options.ServerID, string(c.data))
	}
}

// Run reloads the file at intervals until ctx ends, in addition to the reloads when the file changes.
func (a *Authorizer) Run(ctx context.Context) {
	c := a.options.Configuration
	if c.file == "" {
		<-ctx.Done()
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.options.Clock.After(pollInterval):
		}
		if err := a.Reload(); err != nil {
			a.options.Logger.Error(err, "Failed to reload the authorization configuration; the previous one stays in use",
				"file", c.file)
		}
	}
}

// Reload implements serving.Reloadable. It replaces the modes if the content of the file has changed. On an error the
// current modes stay in use. The cached responses of webhooks are dropped together with the modes.
func (a *Authorizer) Reload() error {
	if a.options.Configuration.file == "" {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	data, err := os.ReadFile(a.options.Configuration.file)
	if err == nil && bytes.Equal(data, a.data) {
		return nil
	}
	if err == nil {
		// Content that is invalid is not tried again.
		a.data = data
		err = a.replace(data)
	}
	if err != nil {
		metrics.RecordAuthorizationConfigAutomaticReloadFailure(a.options.ServerID)
	}
	return err
}

func (a *Authorizer) replace(data []byte) error {
	required := a.options.Configuration.modes().Delete(modeWebhook)
	content, err := decode(data, required)
	if err != nil || reflect.DeepEqual(content, a.last) {
		return err
	}
	a.last = content
	modes, err := a.build(content)
	if err != nil {
		return err
	}
	a.modes.Store(&modes)
	a.options.Logger.Info("Reloaded the authorization configuration", "file", a.options.Configuration.file)
	metrics.RecordAuthorizationConfigAutomaticReloadSuccess(a.options.ServerID, string(data))
	return nil
}
