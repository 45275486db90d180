package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
)

// In etcd before 3.4.31, and 3.5 before 3.5.13, a progress notification may arrive before the events up to its
// revision (etcd-io/etcd#15220, #17507). kube-apiserver has the same minimum versions
// (feature.FeatureSupportChecker).
var (
	progress34 = version.MustParseSemantic("3.4.31")
	etcd35     = version.MustParseSemantic("3.5.0")
	progress35 = version.MustParseSemantic("3.5.13")
)

const (
	minFeatureRetry = 10 * time.Millisecond
	maxFeatureRetry = 15 * time.Second
)

// SupportsProgress reports whether progress notifications of this etcd are reliable. For a remote etcd it is false
// until CheckFeatures has read the version of a member.
func (s *Store) SupportsProgress() bool { return s.progressSupported.Load() }

// FeaturesKnown returns a channel that is closed once the version of a member is known.
func (s *Store) FeaturesKnown() <-chan struct{} { return s.featuresKnown }

func (s *Store) setProgressSupported(supported bool) {
	s.progressSupported.Store(supported)
	s.featuresOnce.Do(func() { close(s.featuresKnown) })
}

// CheckFeatures requests the version of each member until all have responded or ctx ends. SupportsProgress is true
// from the first response, unless that member is too old, until a member turns out to be too old. If a member is a
// shim (see isShim), CheckFeatures tests its features, and logs those that it lacks.
func (s *Store) CheckFeatures(ctx context.Context, clock clock.Clock, log logr.Logger) {
	var members sync.WaitGroup
	var mu sync.Mutex
	tooOld := false
	for _, endpoint := range s.client.Endpoints() {
		members.Go(func() {
			status, err := s.awaitStatus(ctx, endpoint, clock, log)
			if err != nil {
				return // ctx has ended
			}
			if isShim(status.Header) {
				s.shim.Store(true)
			}
			lacksProgress := isShim(status.Header) && !s.testShim(ctx, log.WithValues("endpoint", endpoint))
			mu.Lock()
			defer mu.Unlock()
			tooOld = tooOld || lacksProgress
			if !supportsProgress(status.Version) {
				tooOld = true
				log.Info("The version of etcd is too old for consistent reads from the watch cache", "endpoint", endpoint,
					"version", status.Version)
			}
			s.setProgressSupported(!tooOld)
		})
	}
	members.Wait()
}

// awaitStatus requests the status of a member until it responds or ctx ends.
func (s *Store) awaitStatus(
	ctx context.Context, endpoint string, clock clock.Clock, log logr.Logger,
) (*clientv3.StatusResponse, error) {
	for retry := minFeatureRetry; ; retry = min(2*retry, maxFeatureRetry) {
		limited, cancel := context.WithTimeout(ctx, statusTimeout)
		status, err := s.client.Status(limited, endpoint)
		cancel()
		if err == nil {
			return status, nil
		}
		log.V(1).Info("The version of etcd is unknown; retrying", "endpoint", endpoint, "reason", err.Error())
		select {
		case <-clock.After(retry):
		case <-ctx.Done():
			return nil, fmt.Errorf("read the version of etcd: %w", ctx.Err())
		}
	}
}

// supportsProgress reports whether etcd of a version sends a progress notification only after the events up to its
// revision. It is false for an invalid version.
func supportsProgress(etcd string) bool {
	v, err := version.ParseSemantic(etcd)
	if err != nil {
		return false
	}
	return v.AtLeast(progress35) || v.AtLeast(progress34) && v.LessThan(etcd35)
}
