// Package encryption reads kube-apiserver's EncryptionConfiguration. Transformers and KMS plugins are upstream's; this
// package selects the transformer of a path, and loads a changed file again.
package encryption

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
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
	// Interval is the interval at which Run looks for changes; default 10 s.
	Interval time.Duration
	// Server identifies this replica in metrics.
	Server string
}

// Configuration is a loaded EncryptionConfiguration. All methods are safe for concurrent use; Run must be called
// once.
type Configuration struct {
	options      Options
	hash         string // hash of the content in use; changed by Run only
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

// Load reads a file and connects to its KMS plugins. It succeeds even if a plugin does not respond. The connections
// last until Close or, with Options.Reload, until Run has loaded another file.
func Load(ctx context.Context, options Options) (*Configuration, error) {
	options.Interval = cmp.Or(options.Interval, reloadInterval)
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
		remote:       options.Reload || loaded.KMSCloseGracePeriod > 0, // 0 without plugins
	}
	if !options.Reload {
		for _, check := range loaded.HealthChecks {
			c.checks = append(c.checks, newCheck(check))
		}
		return c, nil
	}
	if len(loaded.HealthChecks) != 1 {
		stop()
		return nil, errChecks
	}
	c.reloads = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], stop,
		loaded.KMSCloseGracePeriod)
	c.transformers, c.checks = c.reloads, []Check{newCheck(c.reloads)}
	return c, nil
}

// healthChecker has the methods of upstream's healthz.HealthChecker.
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

// Checks returns the health checks of KMS plugins. A configuration that is reloaded has one check for all plugins.
func (c *Configuration) Checks() []Check { return c.checks }

// Close closes the connections to KMS plugins that Load has opened.
func (c *Configuration) Close() { c.stop() }

// neverEncrypted has the path prefixes of values that are not API objects: allocated addresses and ports of Services,
// and the endpoints of replicas. kube-apiserver stores these values without transformers, even if a wildcard in the
// file matches them.
var neverEncrypted = []string{"ranges/", "masterleases/", "peerserverleases/"}

// Storage returns the encryption of the store whose objects the catalogs describe.
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

// resources keeps the transformer of each resource that is in use. A transformer stays the same when the file is
// reloaded: it refers to the current configuration.
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

// Malformed returns e, which may be nil, with the errors that kube-apiserver returns while the feature gate
// AllowUnsafeMalformedObjectDeletion is enabled.
func Malformed(e *storage.Encryption) *storage.Encryption {
	if e == nil {
		plain := malformed{identity.NewEncryptCheckTransformer()}
		return &storage.Encryption{For: func(string) value.Transformer { return plain }}
	}
	return &storage.Encryption{
		Remote: e.Remote, For: func(path string) value.Transformer { return malformed{e.For(path)} },
	}
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
