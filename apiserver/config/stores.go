package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// EtcdOverride configures another etcd for a resource.
type EtcdOverride struct {
	// Resource is the resource. The name "*" means all resources of the group that have no override of their own.
	Resource schema.GroupResource
	Servers  []string
}

var errOverridesInvalid = errors.New("--etcd-servers-overrides invalid, must be of format: group/resource#servers, " +
	"where servers are URLs, semicolon separated")

// Overrides parses --etcd-servers-overrides. If a resource has several overrides, the last one applies.
func (e *Etcd) Overrides() ([]EtcdOverride, error) {
	var overrides []EtcdOverride
	for _, override := range e.ServersOverrides {
		resource, urls, ok := strings.Cut(override, "#")
		group, name, qualified := strings.Cut(resource, "/")
		servers := strings.Split(urls, ";")
		if !ok || !qualified || strings.Contains(name, "/") || strings.Contains(urls, "#") || slices.Contains(servers, "") {
			return nil, errOverridesInvalid
		}
		overrides = append(overrides, EtcdOverride{
			Resource: schema.GroupResource{Group: group, Resource: name}, Servers: servers,
		})
	}
	return overrides, nil
}

// Uncached parses --watch-cache-sizes and returns the resources with size 0. Other sizes have no effect, as in
// kube-apiserver.
func (e *Etcd) Uncached() (map[schema.GroupResource]bool, error) {
	uncached := map[schema.GroupResource]bool{}
	for _, item := range e.WatchCacheSizes {
		resource, size, found := strings.Cut(item, "#")
		number, err := strconv.Atoi(size)
		switch {
		case !found || strings.Contains(size, "#"):
			return nil, fmt.Errorf("invalid value of watch cache size: %s", item)
		case err != nil:
			return nil, fmt.Errorf("invalid size of watch cache size: %s", item)
		case number < 0:
			return nil, fmt.Errorf("watch cache size cannot be negative: %s", item)
		}
		name := schema.ParseGroupResource(resource)
		delete(uncached, name)
		if number == 0 {
			uncached[name] = true
		}
	}
	return uncached, nil
}

// validateStores returns the errors in the flags of storage.
func (c *Config) validateStores() []error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	e := &c.Etcd
	if len(e.Servers) == 0 && c.Member.DataDirectory == "" {
		refuse("--etcd-servers must be specified, or --etcd-data-dir to run an embedded member")
	}
	if e.Backend != "" && e.Backend != "etcd3" {
		refuse("--storage-backend %q invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'", e.Backend)
	}
	if _, err := e.Overrides(); err != nil {
		errs = append(errs, err)
	}
	if len(e.ServersOverrides) > 0 && c.Extension.Enabled() {
		refuse("--etcd-servers-overrides has no effect with --extension-groups: it applies to built-in resources only")
	}
	if e.EncryptionConfig == "" && e.ReloadEncryptionConfig {
		refuse("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	if e.StorageMediaType != "" && !slices.Contains(storageMediaTypes, e.StorageMediaType) {
		refuse("--storage-media-type %q invalid, allowed values: %s", e.StorageMediaType,
			strings.Join(storageMediaTypes, ", "))
	}
	if e.InitializationTimeout < 0 {
		refuse("--storage-initialization-timeout can not be negative value")
	}
	if _, err := e.Uncached(); err != nil {
		errs = append(errs, err)
	}
	return errs
}
