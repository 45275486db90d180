package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"quorate.dev/apiserver/storage"
)

const (
	// leasesPath is kube-apiserver's prefix for the addresses of replicas. Each address is an Endpoints object with a
	// TTL, whose name is the ID of the replica.
	leasesPath = "peerserverleases/"
	// leaseTime is the TTL of an address.
	leaseTime = 15 * time.Second
	// renewal is the interval at which an address is renewed.
	renewal = 10 * time.Second

	identityLabel = "apiserverIdentity"
)

// Leases reads and writes the addresses of replicas in etcd, in kube-apiserver's format.
type Leases struct {
	store   *storage.Store
	encoder runtime.Encoder
	decoder runtime.Decoder
}

// NewLeases returns the leases in a store. No other entries with a TTL should be written through the same store,
// because the store uses one etcd lease for entries with the same TTL.
func NewLeases(store *storage.Store) (*Leases, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return &Leases{
		store: store, encoder: protobuf.NewSerializer(scheme, scheme),
		decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer(),
	}, nil
}

// renew writes the address of a replica. It increments the generation of the object, as kube-apiserver does.
func (l *Leases) renew(ctx context.Context, id, ip string, port int32) error {
	value, err := l.store.Get(ctx, leasesPath+id)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	for {
		entry := &corev1.Endpoints{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}}
		if value.Revision != 0 {
			if err := l.decode(value.Data, entry); err != nil {
				return err
			}
		}
		entry.Generation++
		metav1.SetMetaDataLabel(&entry.ObjectMeta, identityLabel, id)
		entry.Subsets = []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: ip}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
		}}
		var data bytes.Buffer
		if err := l.encoder.Encode(entry, &data); err != nil {
			return err
		}
		_, err = l.store.Update(ctx, leasesPath+id, value.Revision, data.Bytes(), leaseTime)
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		value = conflict.Current
	}
}

func (l *Leases) decode(data []byte, entry *corev1.Endpoints) error {
	_, _, err := l.decoder.Decode(data, nil, entry)
	return err
}

// address returns the address (host:port) of a replica.
func (l *Leases) address(ctx context.Context, id string) (string, error) {
	value, err := l.store.Get(ctx, leasesPath+id)
	if err != nil {
		return "", fmt.Errorf("read the address of %s: %w", id, err)
	}
	entry := &corev1.Endpoints{}
	if err := l.decode(value.Data, entry); err != nil {
		return "", fmt.Errorf("read the address of %s: %w", id, err)
	}
	for _, subset := range entry.Subsets {
		if len(subset.Addresses) > 0 && len(subset.Ports) > 0 {
			return net.JoinHostPort(subset.Addresses[0].IP, strconv.Itoa(int(subset.Ports[0].Port))), nil
		}
	}
	return "", fmt.Errorf("%s has no address", id)
}

// remove deletes the address of a replica if it exists.
func (l *Leases) remove(ctx context.Context, id string) error {
	value, err := l.store.Get(ctx, leasesPath+id)
	for err == nil {
		_, err = l.store.Delete(ctx, leasesPath+id, value.Revision)
		var conflict *storage.ConflictError
		switch {
		case !errors.As(err, &conflict):
			return err
		case !conflict.Found:
			// The address has expired.
			return nil
		}
		value, err = conflict.Current, nil
	}
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	return err
}
