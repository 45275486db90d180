package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	count     = 3
	namespace = "default"
	patience  = 2 * time.Minute
)

// replicas are three API servers, each with a voting member of one etcd, or on one store.
type replicas struct {
	*testing.T
	store   *upstream.Store // nil: embedded members
	all     []*upstream.Replica
	clients []rest.Interface // one for each preferred replica
}

func startReplicas(t *testing.T, p plan, seed uint64) *replicas {
	t.Helper()
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	r := &replicas{T: t}
	arguments := membersArguments(t, p, seed)
	if os.Getenv(upstream.StoreName) != "" {
		r.store = upstream.StartStore(t)
	}
	for i := range count {
		options := upstream.Options{Directory: filepath.Join(directory, fmt.Sprint(i)), PKI: pki, Arguments: arguments[i]}
		if r.store != nil {
			options.Etcd, options.Arguments = r.store.Endpoint, nil
		}
		options.Arguments = append(options.Arguments, "--etcd-compaction-interval="+p.compaction.String())
		r.all = append(r.all, &upstream.Replica{Launch: upstream.StartQuorate, Options: options})
	}
	t.Cleanup(r.end)
	r.start(t.Context(), r.all...)
	for i := range r.all {
		config := pki.Admin(1) // Dial overrides the address
		config.QPS, config.Dial = -1, upstream.DialReplicas(r.all, i)
		client, err := check.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		r.clients = append(r.clients, client)
	}
	return r
}

// membersArguments returns the flags of each replica for its embedded member.
func membersArguments(t *testing.T, p plan, seed uint64) [][]string {
	t.Helper()
	peers := peerURLs(t, choices(seed))
	var cluster []string
	for i, url := range peers {
		cluster = append(cluster, fmt.Sprintf("member-%d=%s", i, url))
	}
	var arguments [][]string
	for i, url := range peers {
		arguments = append(arguments, []string{
			fmt.Sprintf("--etcd-name=member-%d", i), "--etcd-listen-peer-urls=" + url, "--etcd-allow-insecure-transport",
			"--etcd-initial-cluster=" + strings.Join(cluster, ","), fmt.Sprintf("--etcd-unsafe-no-fsync=%v", !p.fsync),
			"--etcd-heartbeat-interval=50ms", "--etcd-election-timeout=500ms",
		})
	}
	return arguments
}

// peerURLs returns addresses that no other process uses while a replica is down: on separate loopback addresses.
func peerURLs(t *testing.T, random *rand.Rand) []string {
	t.Helper()
	for range 100 {
		var urls []string
		network := fmt.Sprintf("127.%d.%d", 64+random.IntN(128), random.IntN(256))
		for i := range count {
			address := fmt.Sprintf("%s.%d:2380", network, i+1)
			listener, err := net.Listen("tcp", address)
			if err != nil {
				break
			}
			listener.Close()
			urls = append(urls, "http://"+address)
		}
		if len(urls) == count {
			return urls
		}
	}
	t.Fatal("no loopback addresses are free")
	return nil
}

// start starts replicas at the same time: they may need each other for a quorum.
func (r *replicas) start(ctx context.Context, some ...*upstream.Replica) {
	starting, ctx := errgroup.WithContext(ctx)
	for _, replica := range some {
		starting.Go(func() error { return replica.Start(ctx) })
	}
	if err := starting.Wait(); err != nil && r.Context().Err() == nil {
		r.Errorf("starting replicas: %v", err)
	}
}

func (r *replicas) end() {
	for _, replica := range r.all {
		if server := replica.Server(); server != nil {
			server.Kill()
			if r.Failed() {
				r.Logf("the end of the log of %s:\n%s", replica.Options.Directory, server.Tail())
			}
		}
	}
}

// kill kills and restarts replicas until ctx ends: usually one, sometimes two, which loses the quorum. All run in the
// end. It returns at once; the returned function waits for the end and returns the number of kills.
func (r *replicas) kill(ctx context.Context, p plan, seed uint64) func() int {
	kills := 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		random := choices(seed)
		for {
			if !check.Pause(ctx, p.calm/4+time.Duration(random.Int64N(int64(p.calm)))) {
				return
			}
			victims := random.Perm(count)[:1+random.IntN(5)/4]
			var killed []*upstream.Replica
			for _, i := range victims {
				r.all[i].Server().Kill()
				killed = append(killed, r.all[i])
			}
			kills += len(victims)
			if r.store != nil && len(victims) > 1 {
				r.restartStore()
			}
			check.Pause(ctx, time.Duration(random.Int64N(int64(p.absence))))
			r.start(r.Context(), killed...)
		}
	}()
	r.Cleanup(func() { <-ended })
	return func() int { <-ended; return kills }
}

// restartStore kills the store and starts it again.
func (r *replicas) restartStore() {
	if err := r.store.Restart(r.Context()); err != nil && r.Context().Err() == nil {
		r.Errorf("restarting the store: %v", err)
	}
}

// mustBeReady waits until every replica is ready.
func (r *replicas) mustBeReady() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	for i, client := range r.clients {
		for {
			_, err := client.Get().AbsPath("/readyz").DoRaw(ctx)
			if err == nil {
				break
			}
			if !check.Pause(ctx, 50*time.Millisecond) {
				r.Fatalf("replica %d is not ready: %v", i, err)
			}
		}
	}
}
