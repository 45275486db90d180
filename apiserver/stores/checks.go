package stores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"quorate.dev/apiserver/serving"
)

// AddChecks adds the health checks of all etcds and of KMS plugins. They have kube-apiserver's names and order.
func (s *Stores) AddChecks(health *serving.Health) {
	s.addEtcdCheck(health, s.Default, "etcd", "etcd-readiness")
	for i, l := range s.others {
		s.addEtcdCheck(health, l, fmt.Sprintf("etcd-override-%d", i), fmt.Sprintf("etcd-override-readiness-%d", i))
	}
	s.addEncryptionChecks(health)
}

func (s *Stores) addEtcdCheck(health *serving.Health, l *Location, healthName, readinessName string) {
	healthTimeout, readyTimeout := s.config.Etcd.CheckTimeouts()
	check := l.check(healthTimeout)
	health.Add(serving.Healthz|serving.Livez, serving.Check{Name: healthName, Group: "etcd", Run: check, StartUp: true})
	health.Add(serving.Readyz, serving.Check{Name: healthName, Group: "etcd", Run: check})
	health.Add(serving.Readyz, serving.Check{Name: readinessName, Group: "etcd-readiness", Run: l.check(readyTimeout)})
}

// check returns a health check that does a linearizable read within the timeout.
func (l *Location) check(timeout time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		_, err := l.Store.Revision(ctx)
		return err
	}
}

// EndpointChecks returns a health check for each endpoint of all etcds, for ComponentStatus.
func (s *Stores) EndpointChecks() (checks []func(context.Context) error) {
	for _, l := range s.locations() {
		checks = append(checks, l.endpointChecks()...)
	}
	return checks
}

// CheckSpace returns an error while an etcd or this server rejects writes because a database is full. The check is
// advisory, because reads still work, and users free space with deletions.
func (s *Stores) CheckSpace(context.Context) error {
	for _, l := range s.locations() {
		space := l.space()
		switch {
		case space.DiskFree < space.DiskReserve:
			return errors.New("the file system of etcd is nearly full: objects cannot be created or grow")
		case space.NoSpace:
			return errors.New("alarm NOSPACE: etcd rejects all writes except deletions until its database has space")
		case l.Quota.Exceeded():
			return errors.New("soft quota exceeded: objects cannot be created or grow")
		}
	}
	return nil
}
