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
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

const (
	// leasesPath is where each replica, kube-apiserver's too, has an entry of its address that goes when it is not
	// renewed.
	leasesPath = "masterleases/"
	leaseTime  = 15 * time.Second
)

// errNoLeases keeps all endpoints from being erased because of a fault.
var errNoLeases = errors.New("no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service")

// Leases are Addresses that are alive as long as their replicas renew an entry in etcd.
type Leases struct {
	store *storage.Store
	model resource.Codec
}

// NewLeases returns the leases in a store. The store should have no other writes of entries that expire: etcd's
// leases are reused for those of one time to live.
func NewLeases(store *storage.Store) *Leases {
	kind := corev1.SchemeGroupVersion.WithKind("Endpoints")
	internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
	return &Leases{store: store, model: codec.NewScheme(legacyscheme.Scheme, legacyscheme.Codecs, kind, corev1.SchemeGroupVersion, internal)}
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

// update writes this replica's entry. Its generation counts, as kube-apiserver's does.
func (l *Leases) update(ctx context.Context, ip string) error {
	value, err := l.store.Get(ctx, leasesPath+ip)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	for {
		entry := &api.Endpoints{}
		if value.Revision != 0 {
			stored, err := l.model.Load(value.Data)
			if err != nil {
				return err
			}
			entry = stored.(*api.Endpoints)
		}
		entry.Generation++
		entry.Subsets = []api.EndpointSubset{{Addresses: []api.EndpointAddress{{IP: ip}}}}
		data, err := l.model.Store(entry)
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
		stored, err := l.model.Load(value.Data)
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
			return true, nil // it has just expired
		}
		value, err = conflict.Current, nil
	}
	return false, err
}

// Count are Addresses of a known number of replicas: each adds its own, and when there are too many the next after it
// goes.
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
