package kubernetesservice

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/storage"
)

const (
	// leasesPath is kube-apiserver's prefix of the leases of replicas. Each lease is an Endpoints object that has the
	// replica's IP address as its name, and a TTL.
	leasesPath = "masterleases/"
	leaseTime  = 15 * time.Second
)

// errNoLeases is returned instead of an empty list, so that a storage fault cannot remove all endpoints.
var errNoLeases = errors.New("no API server IP addresses were listed in storage, refusing to erase all endpoints for " +
	"the kubernetes Service")

// Leases implements Addresses: each replica renews a lease in etcd. It corresponds to upstream's lease endpoint
// reconciler.
type Leases struct {
	store *storage.Store
	codec *codec.Scheme
}

// NewLeases returns the leases in a store. The store must be used for no other entries with a TTL, because it lets
// entries with the same TTL share one etcd lease.
func NewLeases(store *storage.Store) *Leases {
	kind := corev1.SchemeGroupVersion.WithKind("Endpoints")
	internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
	return &Leases{
		store: store,
		codec: codec.NewScheme(legacyscheme.Scheme, legacyscheme.Codecs, kind, corev1.SchemeGroupVersion, internal),
	}
}

// StoredAs sets the media type in which leases are stored, and returns l.
func (l *Leases) StoredAs(mediaType string) *Leases {
	l.codec.StoredAs(mediaType)
	return l
}

// Renew implements Addresses.
func (l *Leases) Renew(ctx context.Context, ip string) error { return l.update(ctx, ip) }

// Wanted implements Addresses.
func (l *Leases) Wanted(ctx context.Context, _ string, _ []string, leaving bool) ([]string, error) {
	all, err := l.list(ctx)
	if err == nil && len(all) == 0 && !leaving {
		err = errNoLeases
	}
	return all, err
}

// update renews this replica's lease. It increments the generation, as kube-apiserver does.
func (l *Leases) update(ctx context.Context, ip string) error {
	value, err := l.store.Get(ctx, leasesPath+ip)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	for {
		entry := &api.Endpoints{}
		if value.Revision != 0 {
			stored, err := l.codec.Load(ctx, value.Data)
			if err != nil {
				return err
			}
			entry = stored.(*api.Endpoints)
		}
		entry.Generation++
		entry.Subsets = []api.EndpointSubset{{Addresses: []api.EndpointAddress{{IP: ip}}}}
		data, err := l.codec.Store(ctx, entry)
		if err != nil {
			return err
		}
		_, err = l.store.Update(ctx, leasesPath+ip, value.Revision, data, leaseTime)
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		value = conflict.Current
	}
}

func (l *Leases) list(ctx context.Context) ([]string, error) {
	page, err := l.store.List(ctx, leasesPath, storage.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, value := range page.Values {
		stored, err := l.codec.Load(ctx, value.Data)
		if err != nil {
			return nil, err
		}
		if subsets := stored.(*api.Endpoints).Subsets; len(subsets) > 0 && len(subsets[0].Addresses) > 0 {
			all = append(all, subsets[0].Addresses[0].IP)
		}
	}
	return all, nil
}

// Remove implements Addresses.
func (l *Leases) Remove(ctx context.Context, ip string) (found bool, err error) {
	value, err := l.store.Get(ctx, leasesPath+ip)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	for err == nil {
		_, err = l.store.Delete(ctx, leasesPath+ip, value.Revision)
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) {
			return err == nil, err
		}
		if !conflict.Found {
			return true, nil // the lease expired after it was read
		}
		value, err = conflict.Current, nil
	}
	return false, err
}

// Count implements Addresses for a fixed number of replicas, like upstream's master-count reconciler: each replica adds
// its own address. While there are more addresses than replicas, it removes the next address in sorted order.
type Count int

// Renew implements Addresses.
func (Count) Renew(context.Context, string) error { return nil }

// Remove implements Addresses.
func (Count) Remove(context.Context, string) (found bool, err error) { return true, nil }

// Wanted implements Addresses.
func (c Count) Wanted(_ context.Context, ip string, present []string, leaving bool) ([]string, error) {
	all := slices.DeleteFunc(slices.Clone(present), func(address string) bool { return address == ip })
	if leaving {
		return all, nil
	}
	all = append(all, ip)
	slices.Sort(all)
	for len(all) > int(c) {
		next := (slices.Index(all, ip) + 1) % len(all)
		all = slices.Delete(all, next, next+1)
	}
	return all, nil
}
