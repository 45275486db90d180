package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	clock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
)

func TestProgressIsRight(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.25": false, "3.4.30": false, "3.4.31": true, "3.4.40": true, "3.5.0": false, "3.5.12": false,
		"3.5.13": true, "3.6.0": true, "3.7.3": true, "4.0.0": true, "": false, "latest": false,
	} {
		if got := supportsProgress(version); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}

// versions is a maintenance client of members with different versions; a member with an empty one is unavailable.
type versions struct {
	clientv3.Maintenance
	of    map[string]string
	asked atomic.Int32
}

func (v *versions) Status(_ context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	v.asked.Add(1)
	if v.of[endpoint] == "" {
		return nil, errors.New("no answer")
	}
	return &clientv3.StatusResponse{Version: v.of[endpoint]}, nil
}

func TestCheckFeatures(t *testing.T) {
	embedded := New(etcdtest.Client(t), "/registry")
	if <-embedded.FeaturesKnown(); !embedded.SupportsProgress() {
		t.Error("the embedded etcd does not support progress requests")
	}
	real := New(etcdtest.Remote(t), "/registry")
	if real.SupportsProgress() {
		t.Error("a remote etcd supports progress requests before its version is known")
	}
	if real.CheckFeatures(t.Context(), clock.NewFakeClock(time.Now()), logr.Discard()); !real.SupportsProgress() {
		t.Error("a real etcd does not support progress requests")
	}
	for name, test := range map[string]struct {
		of   map[string]string
		want bool
	}{
		"new":            {map[string]string{"a": "3.6.1", "b": "3.5.13"}, true},
		"one old member": {map[string]string{"a": "3.6.1", "b": "3.5.12"}, false},
		"one is away":    {map[string]string{"a": "3.6.1", "b": ""}, true},
		"all are away":   {map[string]string{"a": "", "b": ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"a", "b"}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			members := &versions{of: test.of}
			client.Maintenance = members
			s := New(client, "/registry")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { s.CheckFeatures(ctx, clock.NewFakeClock(time.Now()), logr.Discard()); close(ended) }()
			for members.asked.Load() < 2 || s.SupportsProgress() != test.want {
				time.Sleep(time.Millisecond) // CheckFeatures does not end while a member is away
			}
			cancel()
			<-ended
			if got := s.SupportsProgress(); got != test.want {
				t.Errorf("supported: %v", got)
			}
		})
	}
}
