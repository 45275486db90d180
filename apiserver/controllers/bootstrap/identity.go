package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/apis/coordination"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

const (
	identityDuration = time.Hour // duration of a lease after its renewal
	identityRenewal  = 10 * time.Second
	identityCleanup  = time.Hour       // interval of the deletion of expired leases
	releaseTimeout   = 2 * time.Second // timeout of the deletion of the lease at shutdown

	identityLabel  = "apiserver.kubernetes.io/identity"
	component      = "kube-apiserver"
	peerAnnotation = "kubernetes.io/peer-advertise-address"
)

// Leases is the resource of identities.
var Leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// Identity is the Lease in kube-system that identifies a live replica. Its name is derived from the hostname as in
// kube-apiserver: a replica that restarts, or replaces a kube-apiserver on the host, takes over the existing lease.
type Identity struct {
	bootstrap *Bootstrap
	name      string
	holder    string
	hostname  string
	address   string // address at which other replicas reach this one
}

// Identity returns the identity of this replica. Run creates its lease.
func (b *Bootstrap) Identity(hostname, address string) *Identity {
	name := IdentityOf(hostname)
	return &Identity{bootstrap: b, name: name, holder: name + "_" + uuid.NewString(), hostname: hostname, address: address}
}

// IdentityOf returns the name of the lease of a host.
func IdentityOf(hostname string) string {
	var text []byte
	for _, part := range []string{hostname, component} {
		text = append(binary.BigEndian.AppendUint16(text, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(text)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// Run replaces the lease of a previous process, renews it until ctx ends, and deletes it. It calls renewed after
// each renewal.
func (i *Identity) Run(ctx context.Context, renewed func()) error {
	if err := i.delete(ctx); err != nil && ctx.Err() == nil {
		i.bootstrap.logger.Error(err, "Failed to delete the lease of the previous process; it will be renewed",
			"lease", i.name)
	}
	renew := func(ctx context.Context) error {
		err := i.renew(ctx)
		if err == nil {
			renewed()
		}
		return err
	}
	loop := Loop{Name: i.name, Pass: renew, Every: identityRenewal}
	loop.Run(ctx, i.bootstrap.clock, i.bootstrap.logger)
	releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := i.delete(releaseCtx); err != nil {
		i.bootstrap.logger.Error(err, "Failed to delete the lease; another replica deletes it after it expires",
			"lease", i.name)
	}
	return nil
}

func (i *Identity) delete(ctx context.Context) error {
	err := i.bootstrap.objects.Delete(system.WithServerUser(ctx),
		resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem, Name: i.name}, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// renew updates the lease, or creates it. Replicas on one host share a lease: if another one creates it concurrently,
// it is updated.
func (i *Identity) renew(ctx context.Context) error {
	err := i.update(ctx)
	if !apierrors.IsNotFound(err) {
		return err
	}
	if err = i.create(ctx); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return i.update(ctx)
}

func (i *Identity) update(ctx context.Context) error {
	_, err := i.bootstrap.objects.Update(ctx,
		resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem, Name: i.name},
		i.assert, resource.WriteOptions{})
	return err
}

func (i *Identity) create(ctx context.Context) error {
	lease := &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: i.name},
		Spec:       coordination.LeaseSpec{HolderIdentity: &i.holder},
	}
	if err := i.assert(lease); err != nil {
		return err
	}
	_, err := i.bootstrap.objects.Create(ctx,
		resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem}, lease, resource.WriteOptions{})
	return err
}

// assert sets the fields that every replica renews. The holder stays unchanged, because replicas on one host share the
// lease.
func (i *Identity) assert(object runtime.Object) error {
	lease := object.(*coordination.Lease)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, identityLabel, component)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, corev1.LabelHostname, i.hostname)
	if utilfeature.DefaultFeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy) {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, peerAnnotation, i.address)
	}
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(identityDuration / time.Second))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: i.bootstrap.clock.Now()}
	return nil
}

// Identities returns the holders of the leases of replicas by name.
func (b *Bootstrap) Identities(ctx context.Context) (map[string]string, error) {
	all, err := b.objects.List(ctx,
		resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem}, resource.ReadOptions{Cached: true})
	if err != nil {
		return nil, err
	}
	holders := map[string]string{}
	for _, object := range all {
		lease := object.(*coordination.Lease)
		if lease.Labels[identityLabel] == component && lease.Spec.HolderIdentity != nil {
			holders[lease.Name] = *lease.Spec.HolderIdentity
		}
	}
	return holders, nil
}

// IsIdentity reports whether an object with a namespace and labels is the lease of a replica.
func IsIdentity(namespace string, labels map[string]string) bool {
	return namespace == metav1.NamespaceSystem && labels[identityLabel] == component
}

// IdentityCleanupLoop deletes expired leases of replicas, which have stopped or crashed.
func (b *Bootstrap) IdentityCleanupLoop() Loop {
	return Loop{Name: "expired identities", Pass: b.removeExpired, Every: identityCleanup}
}

func (b *Bootstrap) removeExpired(ctx context.Context) error {
	all, err := b.objects.List(ctx,
		resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem}, resource.ReadOptions{Cached: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range all {
		lease := object.(*coordination.Lease)
		if lease.Labels[identityLabel] != component || !expired(lease, b.clock) {
			continue
		}
		// The preconditions keep a lease that its replica has renewed since the list.
		seen := metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}
		err := b.objects.Delete(ctx,
			resource.Key{GroupResource: Leases, Namespace: metav1.NamespaceSystem, Name: lease.Name},
			&metav1.DeleteOptions{Preconditions: &seen})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// expired reports whether a lease has expired. A lease without renewTime or duration counts as expired.
func expired(lease *coordination.Lease, clock clock.PassiveClock) bool {
	renewed, seconds := lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds
	return renewed == nil || seconds == nil || renewed.Add(time.Duration(*seconds)*time.Second).Before(clock.Now())
}
