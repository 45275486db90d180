package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/request"
)

// eventTransaction is the name of the event that kube-apiserver's spans have after the transaction.
const eventTransaction = "Txn call completed"

// Create stores data under a path that does not exist, and returns the revision of the write. If the path exists, it
// fails with ErrExists. With a ttl above zero, etcd deletes the path when the ttl expires.
func (s *Store) Create(ctx context.Context, path string, data []byte, ttl time.Duration) (int64, error) {
	return s.create(ctx, path, data, ttl, s.at(path, 0))
}

// create does the same as Create under the given conditions, the first of which is that the path does not exist. It
// fails with ErrGuard if another condition does not hold.
func (s *Store) create(
	ctx context.Context, path string, data []byte, ttl time.Duration, conditions ...clientv3.Cmp,
) (int64, error) {
	ctx, span := request.StartSpan(ctx, "Create etcd3", "key", path)
	defer span.End()
	put, err := s.put(ctx, path, data, ttl)
	if err != nil {
		return 0, fmt.Errorf("create %s: %w", path, err)
	}
	began := s.metrics.start()
	var read []clientv3.Op
	if len(conditions) > 1 {
		read = append(read, clientv3.OpGet(s.Key(path), clientv3.WithKeysOnly()))
	}
	response, err := s.commitCreation(ctx, conditions, put, read...)
	s.metrics.observe(ctx, "create", path, began, err)
	span.Event(eventTransaction)
	if err != nil {
		revision, err := s.resolveNoSpace(ctx, put, 0, classifyWrite(err))
		if err != nil {
			return 0, fmt.Errorf("create %s: %w", path, err)
		}
		return revision, nil
	}
	if !response.Succeeded {
		if len(read) > 0 && len(response.Responses[0].GetResponseRange().Kvs) == 0 {
			return 0, fmt.Errorf("create %s: %w", path, ErrGuard)
		}
		return 0, fmt.Errorf("create %s: %w", path, ErrExists)
	}
	if isShim(response.Header) {
		return s.created(ctx, s.Key(path), put.ValueBytes(), response.Header.Revision), nil
	}
	return response.Header.Revision, nil
}

// Update replaces the value of a path whose ModRevision is expected, and returns the revision of the write. If the
// ModRevision differs, it returns a *ConflictError with the current value.
func (s *Store) Update(
	ctx context.Context, path string, expected int64, data []byte, ttl time.Duration,
) (int64, error) {
	ctx, span := request.StartSpan(ctx, "GuaranteedUpdate etcd3", "key", path)
	defer span.End()
	put, err := s.put(ctx, path, data, ttl)
	if err != nil {
		return 0, fmt.Errorf("update %s: %w", path, err)
	}
	revision, err := s.swap(ctx, "update", path, expected, put)
	span.Event(eventTransaction)
	if err != nil {
		return 0, fmt.Errorf("update %s: %w", path, err)
	}
	return revision, nil
}

// Delete deletes a path whose ModRevision is expected, and returns the revision of the deletion. If the ModRevision
// differs, it returns a *ConflictError with the current value.
func (s *Store) Delete(ctx context.Context, path string, expected int64) (int64, error) {
	revision, err := s.swap(ctx, "delete", path, expected, clientv3.OpDelete(s.Key(path)))
	if err != nil {
		return 0, fmt.Errorf("delete %s: %w", path, err)
	}
	return revision, nil
}

// swap runs an operation if the ModRevision of the path is expected, and otherwise reads the path, in one
// transaction. name is the value of the metrics' label operation.
func (s *Store) swap(ctx context.Context, name, path string, expected int64, operation clientv3.Op) (int64, error) {
	began := s.metrics.start()
	response, err := s.commit(ctx, []clientv3.Cmp{s.at(path, expected)}, operation, clientv3.OpGet(s.Key(path)))
	s.metrics.observe(ctx, name, path, began, err)
	if err != nil {
		return s.resolveNoSpace(ctx, operation, expected, classifyWrite(err))
	}
	if response.Succeeded {
		return response.Header.Revision, nil
	}
	conflict := &ConflictError{}
	if kvs := response.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
		if conflict.Current, err = s.decrypted(ctx, kvs[0]); err != nil {
			return 0, err
		}
		conflict.Found = true
	}
	return 0, conflict
}

// resolveNoSpace finds out whether etcd has applied a put that failed with ErrNoSpace: etcd does so if the database
// became full after it accepted the transaction. expected is the ModRevision on which the put depended. Other errors
// are returned unchanged.
func (s *Store) resolveNoSpace(
	ctx context.Context, operation clientv3.Op, expected int64, failure error,
) (int64, error) {
	if !errors.Is(failure, ErrNoSpace) || !operation.IsPut() {
		return 0, failure
	}
	found, err := s.get(ctx, string(operation.KeyBytes()))
	if err != nil {
		return 0, uncertainError{failure}
	}
	current := &mvccpb.KeyValue{}
	if len(found.Kvs) == 1 {
		current = found.Kvs[0]
	}
	switch {
	case current.ModRevision > 0 && bytes.Equal(current.Value, operation.ValueBytes()):
		return current.ModRevision, nil
	case current.ModRevision == expected:
		return 0, failure
	}
	return 0, uncertainError{failure} // another client has changed the object since
}

// DeleteUnreadable deletes a path whose ModRevision is expected and whose value cannot be decrypted or decoded. It
// reports whether the path had that revision. Unlike Delete, it does not read the current value after a conflict,
// because that value may be unreadable too.
func (s *Store) DeleteUnreadable(ctx context.Context, path string, expected int64) (deleted bool, err error) {
	began := s.metrics.start()
	current := []clientv3.Cmp{s.at(path, expected)}
	response, err := s.commit(ctx, current, clientv3.OpDelete(s.Key(path)),
		clientv3.OpGet(s.Key(path), clientv3.WithKeysOnly()))
	s.metrics.observe(ctx, "delete", path, began, err)
	if err != nil {
		return false, fmt.Errorf("delete %s: %w", path, classifyWrite(err))
	}
	return response.Succeeded, nil
}

// at returns the condition that the ModRevision of a path is revision; 0: the path does not exist.
func (s *Store) at(path string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(s.Key(path)), "=", revision)
}

// put returns the operation that writes encrypted data, attached to a lease if ttl is above zero. It may call a KMS
// plugin, and etcd to grant the lease.
func (s *Store) put(ctx context.Context, path string, data []byte, ttl time.Duration) (clientv3.Op, error) {
	data, err := s.encrypt(ctx, path, data)
	if err != nil {
		return clientv3.Op{}, err // not classified: a KMS plugin's status is not etcd's
	}
	if ttl <= 0 {
		return clientv3.OpPut(s.Key(path), string(data)), nil
	}
	lease, err := s.leases.get(ctx, seconds(ttl))
	if err != nil {
		return clientv3.Op{}, classify(err)
	}
	return clientv3.OpPut(s.Key(path), string(data), clientv3.WithLease(lease)), nil
}
