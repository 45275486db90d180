// Package encryption reads kube-apiserver's EncryptionConfiguration. Transformers, KMS plugins and the reload are
// upstream's; this package selects the transformer of a path.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// Options configure Load.
type Options struct {
	File string
	// Reload makes Run load the file again when it changes.
	Reload bool
	// Server identifies this replica in metrics.
	Server string
}

// Configuration is a loaded file.
type Configuration struct {
	options      Options
	hash         string // of the file
	transformers value.ResourceTransformers
	remote       bool
	checks       []Check
	reloads      *encryptionconfig.DynamicTransformers // nil: the file is never loaded again
	stop         context.CancelFunc
}

// Check is a health check of KMS plugins.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// Load reads a file and connects to its KMS plugins. It succeeds although a plugin does not answer. The connections
// last until Close.
func Load(ctx context.Context, options Options) (*Configuration, error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, options.File, options.Reload, options.Server)
	if err != nil {
		stop()
		return nil, err // kube-apiserver's text
	}
	metrics.RecordEncryptionConfigLastConfigInfo(options.Server, loaded.EncryptionFileContentHash)
	c := &Configuration{
		options: options, hash: loaded.EncryptionFileContentHash, stop: stop,
		transformers: encryptionconfig.StaticTransformers(loaded.Transformers),
		remote:       options.Reload || loaded.KMSCloseGracePeriod > 0, // twice the timeouts of all plugins
	}
	if !options.Reload {
		for _, check := range loaded.HealthChecks {
			c.checks = append(c.checks, newCheck(check))
		}
		return c, nil
	}
	if len(loaded.HealthChecks) != 1 {
		stop()
		return nil, errors.New("failed to start kms encryption config hot reload controller. only 1 health check should be available when reload is enabled")
	}
	c.reloads = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], stop, loaded.KMSCloseGracePeriod)
	c.transformers, c.checks = c.reloads, []Check{newCheck(c.reloads)}
	return c, nil
}

// healthChecker is upstream's healthz.HealthChecker.
type healthChecker interface {
	Name() string
	Check(*http.Request) error
}

func newCheck(checker healthChecker) Check {
	return Check{Name: checker.Name(), Run: func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+checker.Name(), nil)
		if err != nil {
			return err
		}
		return checker.Check(request)
	}}
}

// Checks returns the health checks of KMS plugins. A configuration that is reloaded has one for all plugins.
func (c *Configuration) Checks() []Check { return c.checks }

// Reloads reports whether Run must be called.
func (c *Configuration) Reloads() bool { return c.reloads != nil }

// Run loads the file again when it changes, until ctx ends. A file that is not valid, or whose KMS plugins are
// unhealthy, is ignored and tried again.
func (c *Configuration) Run(ctx context.Context) {
	controller.NewDynamicEncryptionConfiguration(
		"encryption-provider-config-automatic-reload-controller", c.options.File, c.reloads, c.hash, c.options.Server,
	).Run(ctx)
}

// Close closes the connections to KMS plugins.
func (c *Configuration) Close() { c.stop() }

// reloadInterval is the interval at which Run looks for changes. kube-apiserver's is a minute.
const reloadInterval = 10 * time.Second

// SetReloadInterval sets the interval at which Run looks for changes. Upstream keeps it in a package variable.
func SetReloadInterval() { controller.EncryptionConfigFileChangePollDuration = reloadInterval }

// neverEncrypted are the prefixes of values that are not objects of the API: allocated addresses and ports of Services,
// and the endpoints of replicas. kube-apiserver's storage for them has no transformers, whatever the wildcards.
var neverEncrypted = []string{"ranges/", "masterleases/", "peerserverleases/"}

// Storage returns the encryption of the store whose objects catalogs describe.
func (c *Configuration) Storage(catalogs *resource.CatalogHolder) *storage.Encryption {
	r := resources{transformers: c.transformers}
	return &storage.Encryption{Remote: c.remote, For: func(path string) value.Transformer {
		for _, prefix := range neverEncrypted {
			if strings.HasPrefix(path, prefix) {
				return identity.NewEncryptCheckTransformer()
			}
		}
		return r.of(catalogs.Current().ResourceAt(path))
	}}
}

// resources keeps the transformer of each resource that is used. A reload does not replace it: it refers to the current
// configuration.
type resources struct {
	transformers value.ResourceTransformers
	known        sync.Map // value.Transformer by schema.GroupResource
}

func (r *resources) of(name schema.GroupResource) value.Transformer {
	if known, ok := r.known.Load(name); ok {
		return known.(value.Transformer)
	}
	added, _ := r.known.LoadOrStore(name, r.transformers.TransformerForResource(name))
	return added.(value.Transformer)
}

// Malformed returns e, which may be nil, with the errors that kube-apiserver has while the feature gate
// AllowUnsafeMalformedObjectDeletion is on.
func Malformed(e *storage.Encryption) *storage.Encryption {
	if e == nil {
		plain := malformed{identity.NewEncryptCheckTransformer()}
		return &storage.Encryption{For: func(string) value.Transformer { return plain }}
	}
	return &storage.Encryption{Remote: e.Remote, For: func(path string) value.Transformer { return malformed{e.For(path)} }}
}

type malformed struct{ value.Transformer }

// TransformFromStorage implements value.Read.
func (m malformed) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	out, stale, err := m.Transformer.TransformFromStorage(ctx, data, of)
	if err != nil {
		err = fmt.Errorf("data from the storage is not transformable revision=0: %w", err)
	}
	return out, stale, err
}
