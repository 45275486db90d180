package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Encryption encrypts and decrypts the values of a Store.
type Encryption struct {
	// For returns the transformer of the values in a path's collection.
	For func(path string) value.Transformer
	// Remote is set if transformers may call a KMS plugin.
	Remote bool
}

// encryptedPrefix begins every encrypted value. Plain JSON begins with a brace, plain protobuf with "k8s\x00".
var encryptedPrefix = []byte("k8s:enc:")

// kmsPrefix begins every value that a KMS plugin encrypted, in all versions of the protocol.
var kmsPrefix = []byte("k8s:enc:kms:")

// TransformError means that a value cannot be encrypted or decrypted.
type TransformError struct {
	Key    string // in etcd
	Reason error
}

// Error returns the reason alone, as in kube-apiserver's responses.
func (e *TransformError) Error() string { return e.Reason.Error() }

// Unwrap returns the reason.
func (e *TransformError) Unwrap() error { return e.Reason }

// Encrypt encrypts the values that are written from now on. It must be called before the first use of the store.
func (s *Store) Encrypt(e *Encryption) { s.encryption = e }

// DecryptsRemotely reports whether Decrypt may call a KMS plugin for the events.
func (s *Store) DecryptsRemotely(events []Event) bool {
	return s.encryption != nil && s.encryption.Remote && slices.ContainsFunc(events, func(e Event) bool {
		return bytes.HasPrefix(e.Data, kmsPrefix) || bytes.HasPrefix(e.Previous, kmsPrefix)
	})
}

// Decrypt decrypts the values of events of a WatchStream, in place. After an error some of them are decrypted.
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

// encrypt returns the bytes that etcd stores for a value. The key is authenticated data of the encryption: a value that
// is copied to another key cannot be decrypted.
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

// decrypt returns the value of the bytes in etcd. stale means that a write would encrypt it differently, with a new key
// for instance.
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

// transformFromStorage returns an error for values on which the transformer panics, as aescbc does on a value that ends
// after its initialization vector. Such a value in etcd must not end the server.
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

// decrypted returns the value of a key.
func (s *Store) decrypted(ctx context.Context, kv *mvccpb.KeyValue) (v Value, err error) {
	v = s.value(kv)
	v.Data, v.Stale, err = s.decrypt(ctx, v.Path, v.Data)
	return v, err
}

// decryptedPage decrypts the values of a page. With unreadable set, values that cannot be decrypted have an error
// instead of data; otherwise the first of them fails the list, with kube-apiserver's text.
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
