package stores

import (
	"context"
	"slices"
	"time"

	"quorate.dev/apiserver/startup"
)

// HookReadable is the name of the hook that is done when the etcds can be read.
const HookReadable = "storage"

// Hooks returns the hooks of the etcds, the watch caches, and the encryption configuration.
func (s *Stores) Hooks() startup.Sequence {
	readable := []string{HookReadable}
	return append(startup.Sequence{
		{Name: HookReadable, Run: s.start},
		{Name: "watch-cache", After: readable, Run: func(ctx context.Context, done func()) error {
			done()
			return s.each(func(ctx context.Context, l *Location) error { return l.Caches.Run(ctx) })(ctx, done)
		}},
		{Name: "compaction", Restarts: true, After: readable, Run: s.each(s.compact)},
		{Name: "storage-handover", Restarts: true, Run: s.each(s.repeatLostWrites)},
		{Name: "storage-space", Restarts: true, After: readable, Run: s.each(s.pollSpace)},
		{Name: "orphans", Restarts: true, After: readable, Run: startup.Forever(s.reportOrphans)},
	}, s.encryptionHooks()...)
}

// each returns the run of a hook that calls a function for each etcd, concurrently.
func (s *Stores) each(run func(context.Context, *Location) error) startup.Run {
	return func(ctx context.Context, _ func()) error {
		var functions []func(context.Context) error
		for _, l := range s.locations() {
			functions = append(functions, func(ctx context.Context) error { return run(ctx, l) })
		}
		return startup.Together(ctx, functions...)
	}
}

// featuresTimeout bounds the time for which the start waits for the version of etcd. Until the version is known,
// clients that resume a watch must list again.
const featuresTimeout = 2 * time.Second

// start waits until the etcds can be read. The hook is done when the features of all etcds are known or featuresTimeout
// has passed.
func (s *Stores) start(ctx context.Context, done func()) error {
	if err := s.Default.awaitReady(ctx); err != nil {
		return err
	}
	checkFeatures := s.each(func(ctx context.Context, l *Location) error {
		l.Store.CheckFeatures(ctx, s.clock, s.logger.WithName("storage"))
		return nil
	})
	return startup.Together(ctx, func(ctx context.Context) error {
		return checkFeatures(ctx,
			nil)
	}, func(ctx context.Context) error {
		if err := s.awaitFeatures(ctx); err != nil {
			return err
		}
		done()
		return nil
	})
}

// awaitFeatures waits until the features of all etcds are known, but at most featuresTimeout.
func (s *Stores) awaitFeatures(ctx context.Context) error {
	timeout := s.clock.After(featuresTimeout)
	for _, l := range s.locations() {
		select {
		case <-l.Store.FeaturesKnown():
		case <-timeout:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Stores) compact(ctx context.Context, l *Location) error {
	logger := s.logger.WithName("compaction")
	return startup.Together(ctx, func(ctx context.Context) error {
		l.Store.RunCompaction(ctx, s.config.Etcd.CompactionInterval, l.Quota, s.clock, logger)
		return nil
	}, func(ctx context.Context) error {
		l.Store.FollowCompaction(ctx, s.clock, logger, l.Caches.Compacted)
		return nil
	})
}

func (s *Stores) repeatLostWrites(ctx context.Context, l *Location) error {
	if l.member != nil {
		l.Store.RepeatLostWrites(ctx, l.member.LeaderChanged, s.clock)
	}
	return nil
}

func (s *Stores) pollSpace(ctx context.Context, l *Location) error {
	l.backend.pollSpace(ctx, l.Store, s.config.SpacePollInterval(), s.clock)
	return nil
}

// initializationPoll is the interval at which AwaitInitialized checks the watch caches, as in kube-apiserver.
const initializationPoll = 100 * time.Millisecond

// AwaitInitialized waits for the watch caches of all etcds, at most --storage-initialization-timeout. Unlike
// kube-apiserver, the server does not initialize caches without readers. It is the run of a hook.
func (s *Stores) AwaitInitialized(ctx context.Context, _ func()) error {
	timeout := s.clock.After(s.config.Etcd.InitializationTimeout)
	for {
		if !slices.ContainsFunc(s.locations(), func(l *Location) bool { return !l.Caches.Initialized() }) {
			return nil
		}
		select {
		case <-s.clock.After(initializationPoll):
		case <-timeout:
			s.logger.Info("The watch caches are not initialized after --storage-initialization-timeout; continuing")
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}
