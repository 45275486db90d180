package storage

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Encryption encrypts and decrypts the values of a Store.
type Encryption struct {
	// For returns the transformer for the values of the collection that a path belongs to.
	For func(path string) value.Transformer
	// Remote is set if transformers may call a KMS plugin.
	Remote bool
}

// encryptedPrefix is the prefix of every encrypted value. Plain JSON begins with a brace, plain protobuf with
// "k8s\x00".
var encryptedPrefix = []byte("k8s:enc:")

// kmsPrefix is the prefix of every value that a KMS plugin has encrypted, in all versions of the KMS API.
var kmsPrefix = []byte("k8s:enc:kms:")

// TransformError means that a value cannot be encrypted or decrypted.
type TransformError struct {
	Key    string // full key in etcd
	Reason error
}

// Error returns the reason alone, without the key, as in kube-apiserver's responses.
func (e *TransformError) Error() string { return e.Reason.Error() }

// Unwrap returns the reason.
func (e *TransformError) Unwrap() error { return e.Reason }

// Encrypt sets the encryption of the store's values. It must be called before the first use of the store.
func (s *Store) Encrypt(e *Encryption) { s.encryption = e }

// Protection says how a stored value is encrypted, if at all.
type Protection int

// The protections are in the order of what reading a value requires: nothing, a key, a KMS plugin.
const (
	Plain Protection = iota
	EncryptedLocally
	EncryptedRemotely
)

// protectionOf returns the protection of a value, given its bytes in etcd.
func protectionOf(stored []byte) Protection {
	switch {
	case bytes.HasPrefix(stored, kmsPrefix):
		return EncryptedRemotely
	case bytes.HasPrefix(stored, encryptedPrefix):
		return EncryptedLocally
	}
	return Plain
}

// Protection returns the greatest protection of the values of events that Decrypt has not decrypted yet.
func (s *Store) Protection(events []Event) (greatest Protection) {
	if s.encryption == nil {
		return Plain
	}
	for _, e := range events {
		greatest = max(greatest, protectionOf(e.Data), protectionOf(e.Previous))
	}
	return greatest
}

// DecryptsRemotely reports whether Decrypt may call a KMS plugin for the events.
func (s *Store) DecryptsRemotely(events []Event) bool {
	return s.encryption != nil && s.encryption.Remote && s.Protection(events) == EncryptedRemotely
}

// Decrypt decrypts the values of events of a WatchStream in place. After an error, some of them are decrypted and
// others not. It may wait for a KMS plugin if DecryptsRemotely reports true.
func (s *Store) Decrypt(ctx context.Context, events []Event) (err error) {
	for i := range events {
		e := &events[i]
		if e.Data != nil {
			if e.Data, _, err = s.decrypt(ctx, e.Path, e.Data); err != nil {
				return err
			}
		}
		if e.Previous != nil {
			if e.Previous, _, err = s.decrypt(ctx, e.Path, e.Previous); err != nil {
				return err
			}
		}
	}
	return nil
}

// encrypt returns the bytes that etcd stores for a value. The key is authenticated data of the encryption, so that a
// value which is copied to another key cannot be decrypted.
func (s *Store) encrypt(ctx context.Context, path string, data []byte) ([]byte, error) {
	if s.encryption == nil {
		return data, nil
	}
	encrypted, err := s.encryption.For(path).TransformToStorage(ctx, data, value.DefaultContext(s.Key(path)))
	if err != nil {
		return nil, &TransformError{Key: s.Key(path), Reason: err}
	}
	return encrypted, nil
}

// decrypt returns the value, given its bytes in etcd. stale means that a write would encrypt the value differently,
// for instance with a new key.
func (s *Store) decrypt(ctx context.Context, path string, stored []byte) (data []byte, stale bool, err error) {
	var transformer value.Transformer
	switch {
	case s.encryption != nil:
		transformer = s.encryption.For(path)
	case !bytes.HasPrefix(stored, encryptedPrefix):
		return stored, false, nil
	default:
		transformer = identity.NewEncryptCheckTransformer() // returns kube-apiserver's error
	}
	data, stale, err = transformFromStorage(ctx, transformer, stored, s.Key(path))
	if err != nil {
		return nil, false, &TransformError{Key: s.Key(path), Reason: err}
	}
	return data, stale, nil
}

// transformFromStorage calls TransformFromStorage and returns a panic as an error. aescbc panics on a value that ends
// after its initialization vector; such a value in etcd must not end the server.
func transformFromStorage(
	ctx context.Context, transformer value.Transformer, stored []byte, key string,
) (data []byte, stale bool, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("malformed value: %v", recovered)
		}
	}()
	return transformer.TransformFromStorage(ctx, stored, value.DefaultContext(key))
}

// decrypted returns the value of a key-value pair.
func (s *Store) decrypted(ctx context.Context, kv *mvccpb.KeyValue) (v Value, err error) {
	v = s.value(kv)
	v.Data, v.Stale, err = s.decrypt(ctx, v.Path, v.Data)
	return v, err
}

// decryptedPage decrypts the values of a page. If unreadable is set, a value that cannot be decrypted has Err instead
// of Data; otherwise the first such value fails the list, with kube-apiserver's message.
func (s *Store) decryptedPage(ctx context.Context, kvs []*mvccpb.KeyValue, unreadable bool) ([]Value, error) {
	values := make([]Value, len(kvs))
	for i, kv := range kvs {
		v, err := s.decrypted(ctx, kv)
		if err != nil && !unreadable {
			key := string(kv.Key)
			return nil, &TransformError{Key: key, Reason: fmt.Errorf("unable to transform key %q: %w", key, err)}
		}
		v.Err = err
		values[i] = v
	}
	return values, nil
}
