package storageversions

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storageversion"
	client "k8s.io/client-go/kubernetes/typed/apiserverinternal/v1alpha1"
	"k8s.io/utils/clock"
)

const (
	// refresh is the interval at which the records are repaired, in case another client has changed them.
	refresh = 10 * time.Minute
	// retry and maxRetry are the first and the last delay of a series after which failed attempts are repeated.
	// kube-apiserver gives up after three attempts, until the next refresh.
	retry    = time.Second
	maxRetry = 10 * time.Second
)

// Options are what Run depends on.
type Options struct {
	Client client.StorageVersionInterface
	// ServerID is the name of the identity Lease of this replica.
	ServerID string
	Clock    clock.Clock
	Logger   logr.Logger
}

// Run records the storage versions of all resources, and repairs the records until ctx ends. It calls done whenever all
// resources are recorded. The identity Lease of this replica must exist, because the garbage collector removes the
// entries of replicas without one.
func (r *Recorder) Run(ctx context.Context, options Options, done func()) error {
	left := r.resources
	for next := retry; ; {
		pause := refresh
		if left = r.recordEach(ctx, options, left); len(left) == 0 {
			r.completed.Store(true)
			done()
			left, next = r.resources, retry
		} else {
			pause, next = next, min(2*next, maxRetry)
		}
		timer := options.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// recordEach records resources and returns those for which that failed. Writes of a resource are permitted as soon as
// the resource is recorded.
func (r *Recorder) recordEach(ctx context.Context, options Options, resources []Resource) (failed []Resource) {
	for _, stored := range resources {
		err := record(ctx, options, stored)
		if ctx.Err() != nil {
			return append(failed, stored)
		}
		r.setState(stored, err)
		if err != nil {
			failed = append(failed, stored)
			options.Logger.Error(err, "Failed to record a storage version; retrying", "resource",
				stored.GroupResource.String())
		}
	}
	return failed
}

// record writes the entry of this replica into the StorageVersion of a resource. The status of a new object is computed
// before the object is created, as in kube-apiserver: its conditions have observed no generation. Errors are not
// wrapped, because clients see them in the error of permit.
func record(ctx context.Context, options Options, of Resource) error {
	stored, err := options.Client.Get(ctx, of.Name(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		created := withEntry(&v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: of.Name()}}, options.ServerID, of)
		if stored, err = options.Client.Create(ctx, created, metav1.CreateOptions{}); err != nil {
			return err
		}
		stored.Status = created.Status
	case err != nil:
		return err
	default:
		stored = withEntry(stored, options.ServerID, of)
	}
	_, err = options.Client.UpdateStatus(ctx, stored, metav1.UpdateOptions{})
	return err
}

// withEntry returns a copy of an object with the entry of this replica, which replaces a former one.
func withEntry(object *v1alpha1.StorageVersion, id string, of Resource) *v1alpha1.StorageVersion {
	object = object.DeepCopy()
	entry := v1alpha1.ServerStorageVersion{
		APIServerID: id, EncodingVersion: of.Encoding, DecodableVersions: of.Decodable, ServedVersions: of.Served,
	}
	entries := object.Status.StorageVersions
	i := slices.IndexFunc(entries, func(e v1alpha1.ServerStorageVersion) bool { return e.APIServerID == id })
	if i < 0 {
		object.Status.StorageVersions = append(entries, entry)
	} else {
		entries[i] = entry
	}
	storageversion.SetCommonEncodingVersion(object)
	return object
}
