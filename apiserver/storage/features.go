package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
)

// etcd before 3.4.31, and 3.5 before 3.5.13, may answer a progress request before it has sent the events up to the
// revision that it answers with (etcd-io/etcd#15220, #17507). kube-apiserver has the same limits.
var (
	progress34 = version.MustParseSemantic("3.4.31")
	etcd35     = version.MustParseSemantic("3.5.0")
	progress35 = version.MustParseSemantic("3.5.13")
)

const (
	firstFeatureRetry = 10 * time.Millisecond
	lastFeatureRetry  = 15 * time.Second
)

// SupportsProgress reports whether what a feed says of its progress after RequestProgress is true. It is not known of
// an etcd in another process until CheckFeatures has had an answer.
func (s *Store) SupportsProgress() bool { return s.progressSupported.Load() }

// FeaturesKnown is closed once the version of a member of etcd is known.
func (s *Store) FeaturesKnown() <-chan struct{} { return s.featuresKnown }

func (s *Store) foundProgress(supported bool) {
	s.progressSupported.Store(supported)
	s.featuresOnce.Do(func() { close(s.featuresKnown) })
}

// CheckFeatures asks each member of etcd for its version until it answers or ctx ends. SupportsProgress holds from the
// first answer on, unless a member is too old.
func (s *Store) CheckFeatures(ctx context.Context, clock clock.Clock, log logr.Logger) {
	var asked sync.WaitGroup
	var mu sync.Mutex
	tooOld := false
	for _, endpoint := range s.client.Endpoints() {
		asked.Go(func() {
			found, err := s.awaitVersion(ctx, endpoint, clock, log)
			if err != nil {
				return // ctx has ended
			}
			mu.Lock()
			defer mu.Unlock()
			if !progressIsRight(found) {
				tooOld = true
				log.Info("The version of etcd is too old for consistent reads from the watch cache", "endpoint", endpoint,
					"version", found)
			}
			s.foundProgress(!tooOld)
		})
	}
	asked.Wait()
}

func (s *Store) awaitVersion(ctx context.Context, endpoint string, clock clock.Clock, log logr.Logger) (string, error) {
	for retry := firstFeatureRetry; ; retry = min(2*retry, lastFeatureRetry) {
		limited, cancel := context.WithTimeout(ctx, spaceTimeout)
		status, err := s.client.Status(limited, endpoint)
		cancel()
		if err == nil {
			return status.Version, nil
		}
		log.V(1).Info("The version of etcd is unknown; asking again", "endpoint", endpoint, "reason", err.Error())
		select {
		case <-clock.After(retry):
		case <-ctx.Done():
			return "", fmt.Errorf("asking for the version of etcd: %w", ctx.Err())
		}
	}
}

// progressIsRight reports whether a version of etcd answers progress requests only after the events before. A version
// that cannot be read does not count as such.
func progressIsRight(etcd string) bool {
	v, err := version.ParseSemantic(etcd)
	if err != nil {
		return false
	}
	return v.AtLeast(progress35) || v.AtLeast(progress34) && v.LessThan(etcd35)
}
