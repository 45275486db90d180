package storage

import (
	"bytes"
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// applied finds the creations that etcd has applied up to the revision of the barrier. It returns, for each of them,
// the header of a successful response at the revision of the creation. The error is ErrCompacted if etcd has compacted
// these events.
//
// Only the events show every such creation: etcd sends no response to a creation that reaches the member in a snapshot,
// and the object may have been deleted since.
func (s *Store) applied(
	ctx context.Context, creations []*write, barrier int64,
) (map[*write]*etcdserverpb.ResponseHeader, error) {
	found := map[*write]*etcdserverpb.ResponseHeader{}
	byKey, after := map[string][]*write{}, barrier
	for _, w := range creations {
		byKey[string(w.key)] = append(byKey[string(w.key)], w)
		after = min(after, w.after)
	}
	if after == barrier {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), attemptTimeout)
	defer cancel()
	// The watch includes barrierKey, so that an event with the revision of the barrier follows the creations.
	for response := range s.client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(after+1),
		clientv3.WithFragment(), clientv3.WithFilterDelete()) {
		if err := response.Err(); err != nil {
			return nil, classify(err)
		}
		for _, event := range response.Events {
			for _, w := range byKey[string(event.Kv.Key)] {
				if event.IsCreate() && bytes.Equal(event.Kv.Value, w.value) {
					found[w] = headerAt(response.Header, event.Kv.ModRevision)
				}
			}
			if event.Kv.ModRevision >= barrier {
				return found, nil
			}
		}
	}
	return nil, ErrUnavailable
}

// headerAt returns the header of a response of the same member at another revision.
func headerAt(header *etcdserverpb.ResponseHeader, revision int64) *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{
		ClusterId: header.ClusterId, MemberId: header.MemberId, RaftTerm: header.RaftTerm, Revision: revision,
	}
}
