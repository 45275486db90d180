package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// hashDelay is the time from the start of a member to its first comparison of hashes. hashPeriod is the time until
	// the next comparison, or hashRetry if a comparison had no result.
	hashDelay  = time.Minute
	hashPeriod = 12 * time.Hour
	hashRetry  = 15 * time.Minute

	// votersInterval is the interval at which a member checks whether the voters have changed while their data differs.
	votersInterval = 2 * time.Second
	// hashTimeout bounds a comparison. hashPoll is the interval of requests to a member that computes its hash.
	hashTimeout = 10 * time.Minute
	hashPoll    = time.Second
	// hashRate limits the rate at which a member reads values for a hash, in bytes per second. hashPage is the desired
	// size of one read, in bytes.
	hashRate = 64 << 20
	hashPage = 4 << 20
	// hashKeys is the number of keys of the first read. hashMaxKeys is the maximum number of keys of one read.
	hashKeys, hashMaxKeys = 64, 8192
)

// hashReport is a member's hash of all keys and values at a revision.
type hashReport struct {
	Cluster string `json:"cluster"`
	Member  string `json:"member"`
	Hash    string `json:"hash"`
}

// hasher computes hashes of the data of a member, at most one at a time. It keeps the last hash, because all other
// members request it.
type hasher struct {
	client *clientv3.Client

	mutex sync.Mutex
	last  *hashing
}

// hashing is a running or finished computation of a hash.
type hashing struct {
	revision int64
	done     chan struct{} // closed when hash and err are set
	hash     string
	err      error
}

// start starts the computation of the hash at a revision, or returns the existing one for that revision. It returns nil
// while a computation for another revision is running. The computation ends when ctx ends.
func (h *hasher) start(ctx context.Context, revision int64) *hashing {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.last != nil && h.last.revision == revision {
		return h.last
	}
	if h.last != nil && !closed(h.last.done) {
		return nil
	}
	started := &hashing{revision: revision, done: make(chan struct{})}
	h.last = started
	go func() {
		defer close(started.done)
		started.hash, started.err = h.sum(ctx, revision)
	}()
	return started
}

func closed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// sum returns the hash of the data at a revision. It fails if the revision is compacted before it has read all data.
func (h *hasher) sum(ctx context.Context, revision int64) (string, error) {
	sum, key, limit := sha256.New(), "\x00", int64(hashKeys)
	for {
		begin := time.Now()
		page, err := h.client.Get(ctx, key, clientv3.WithFromKey(), clientv3.WithRev(revision), clientv3.WithLimit(limit),
			clientv3.WithSerializable())
		if err != nil {
			return "", fmt.Errorf("read the data at revision %d: %w", revision, err)
		}
		read := 0
		for _, kv := range page.Kvs {
			addTo(sum, kv)
			read += len(kv.Value)
		}
		if !page.More {
			break
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		limit = min(max(limit*hashPage/int64(max(read, 1)), 1), hashMaxKeys)
		if !waitFor(ctx, time.Duration(read)*time.Second/hashRate-time.Since(begin)) {
			return "", ctx.Err()
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func addTo(sum hash.Hash, kv *mvccpb.KeyValue) {
	var numbers []byte
	for _, n := range []int64{
		int64(len(kv.Key)), int64(len(kv.Value)), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease,
	} {
		numbers = binary.BigEndian.AppendUint64(numbers, uint64(n))
	}
	sum.Write(numbers)
	sum.Write(kv.Key)
	sum.Write(kv.Value)
}

// serveHash responds with the hash at a revision. It responds with 503 while the hash is being computed, because
// connections of peers have timeouts of a few seconds, and as long as the member's own log has not been compared with a
// leader's log: the data of such a member must not take part in a majority.
func (m *Member) serveHash(w http.ResponseWriter, r *http.Request) {
	revision, err := strconv.ParseInt(r.URL.Query().Get("revision"), 10, 64)
	if err != nil || revision <= 0 {
		http.Error(w, "the revision is not a number", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), peerTimeout)
	defer cancel()
	// After the linearizable read, the member has applied the revision.
	if !closed(m.compared) || m.server.LinearizableReadNotify(ctx) != nil {
		http.Error(w, "this member is not ready", http.StatusServiceUnavailable)
		return
	}
	started := m.hasher.start(m.background, revision)
	if started == nil || !waited(ctx, started.done) {
		http.Error(w, "the hash is being computed", http.StatusServiceUnavailable)
		return
	}
	if started.err != nil {
		http.Error(w, started.err.Error(), http.StatusConflict)
		return
	}
	respond(w, hashReport{
		Cluster: m.server.Cluster().ID().String(), Member: m.server.MemberID().String(), Hash: started.hash,
	})
}

// waited waits until a channel is closed, and reports whether that happened before ctx ended.
func waited(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// hashOf returns the hash of another member at a revision. It retries while the member computes the hash.
func (m *Member) hashOf(ctx context.Context, id types.ID, revision int64) (string, error) {
	for {
		var report hashReport
		err := m.peers.get(ctx, m.peerURLs(id), fmt.Sprintf("%s?revision=%d", hashPath, revision), &report)
		switch {
		case errors.Is(err, errUnavailable) && waitFor(ctx, hashPoll):
			continue
		case err != nil:
			return "", err
		case report.Member != id.String() || report.Cluster != m.server.Cluster().ID().String():
			return "", fmt.Errorf("the peer URL of member %s belongs to member %s of cluster %s", id,
				report.Member, report.Cluster)
		}
		return report.Hash, nil
	}
}

// waitFor waits for a duration, and reports whether it passed before ctx ended.
func waitFor(ctx context.Context, duration time.Duration) bool {
	select {
	case <-time.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}

// agreement is the result of a comparison of hashes.
type agreement int

const (
	agrees     agreement = iota
	incomplete           // some members have not responded, and no reported hash has a majority
	undecided            // members differ, and no hash has a majority
	deviates             // the member differs from a majority, but must not stop now
	damaged              // the member differs from a majority, and stops
)

// decide compares the hashes of voters at one revision. The member stops only if all voters have responded, so that no
// other voter has stopped, and only if it has the lowest ID of the members that differ from the majority. Therefore at
// most one member stops at a time.
func decide(self types.ID, hashes map[types.ID]string, voters int) agreement {
	votes := map[string]int{}
	for _, sum := range hashes {
		votes[sum]++
	}
	majority := ""
	for sum, count := range votes {
		if count > voters/2 {
			majority = sum
		}
	}
	switch {
	case majority == "" && len(votes) > 1:
		return undecided
	case majority == "":
		return incomplete
	case hashes[self] == majority:
		return agrees
	case len(hashes) < voters:
		return deviates
	}
	for id, sum := range hashes {
		if sum != majority && id < self {
			return deviates
		}
	}
	return damaged
}

// watchData compares this member's data with the data of the other voters, some time after the start and then every
// hashPeriod.
func (m *Member) watchData(ctx context.Context, delay, retry time.Duration) {
	if !waited(ctx, m.ready) {
		return
	}
	for {
		if !m.awaitDataComparison(ctx, delay) {
			return
		}
		delay = retry
		result, difference, err := m.compareData(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.log.V(1).Info("Failed to compare the data with the data of the other members; retrying later",
				"reason", err.Error())
		case result == agrees:
			delay = hashPeriod
			m.report.difference.Store(nil)
		case result == undecided, result == deviates:
			m.log.Error(errDataDiffers, "Members have different data", "difference", difference)
			m.report.difference.Store(&difference)
		case result == damaged:
			m.refuse(fmt.Errorf("%w: the data of this member differs from the data of a majority of the members", ErrDamaged))
			return
		}
	}
}

// awaitDataComparison waits until the next comparison is due. While a difference is reported, it returns as soon as the
// set of voters changes, because the operator may have replaced the damaged member. It returns false when ctx ends.
func (m *Member) awaitDataComparison(ctx context.Context, delay time.Duration) bool {
	if m.report.difference.Load() == nil {
		return waitFor(ctx, delay)
	}
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	for before := m.voters(); slices.Equal(before, m.voters()); {
		if !waitFor(ctx, min(delay, votersInterval)) {
			break
		}
	}
	return !errors.Is(ctx.Err(), context.Canceled)
}

var errDataDiffers = errors.New("the data differs from the data of other members")

// compareData compares the hash of this member's data at the present revision with the hashes of the other voters.
// difference is the value of MemberReport.Difference.
func (m *Member) compareData(ctx context.Context) (result agreement, difference string, err error) {
	ctx, cancel := context.WithTimeout(ctx, hashTimeout)
	defer cancel()
	voters := m.voters()
	if len(voters) == 1 || !m.voter() {
		return agrees, "", nil
	}
	if err := m.compare(ctx); err != nil {
		return incomplete, "", err
	}
	revision := m.server.KV().Rev()
	started := m.hasher.start(ctx, revision)
	if started == nil {
		return incomplete, "", errors.New("another hash is being computed")
	}
	hashes := map[types.ID]string{}
	var mutex sync.Mutex
	var requests sync.WaitGroup
	for _, id := range voters {
		if id == m.server.MemberID() {
			continue
		}
		requests.Go(func() {
			if sum, err := m.hashOf(ctx, id, revision); err == nil {
				mutex.Lock()
				defer mutex.Unlock()
				hashes[id] = sum
			}
		})
	}
	<-started.done
	if started.err != nil {
		cancel()
	}
	requests.Wait()
	if started.err != nil {
		return incomplete, "", started.err
	}
	hashes[m.server.MemberID()] = started.hash
	result = decide(m.server.MemberID(), hashes, len(voters))
	return result, m.describeDifference(result, revision, hashes, voters), nil
}
