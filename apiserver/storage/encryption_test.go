package storage_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// sealed encrypts a value by putting a prefix and its key in front of it. Values with another prefix that sealed can
// decrypt are stale.
type sealed struct{ prefix, former string }

func (s sealed) TransformToStorage(_ context.Context, data []byte, key value.Context) ([]byte, error) {
	if bytes.Contains(data, []byte("secret")) {
		return nil, errors.New("the key is locked")
	}
	return []byte(s.prefix + string(key.AuthenticatedData()) + "|" + string(data)), nil
}

func (s sealed) TransformFromStorage(_ context.Context, stored []byte, key value.Context) ([]byte, bool, error) {
	for _, prefix := range []string{s.prefix, s.former} {
		if data, ok := strings.CutPrefix(string(stored), prefix+string(key.AuthenticatedData())+"|"); ok {
			return []byte(data), prefix != s.prefix, nil
		}
	}
	if bytes.HasSuffix(stored, []byte("!")) {
		panic("index out of range")
	}
	return nil, false, errors.New("no key decrypts the value")
}

const (
	local  = "k8s:enc:local:"
	remote = "k8s:enc:kms:"
)

// TestEncryption writes and reads values through a transformer. The key of a value is authenticated, a value of a
// former transformer is stale, and a transformer that panics fails the request only.
func TestEncryption(t *testing.T) {
	client := etcdtest.Client(t)
	store := storage.New(client, "/registry")
	store.Encrypt(&storage.Encryption{For: func(path string) value.Transformer {
		if strings.HasPrefix(path, "secrets/") {
			return sealed{prefix: remote, former: local}
		}
		return sealed{prefix: local}
	}, Remote: true})
	for _, path := range []string{"secrets/default/a", "pods/default/a"} {
		if _, err := store.Create(t.Context(), path, []byte("value"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for key, text := range map[string]string{
		"/registry/secrets/default/b": local + "/registry/secrets/default/b|former",
		"/registry/secrets/default/c": remote + "/registry/secrets/default/a|value", // copied
		"/registry/secrets/default/d": "plain!",
	} {
		if _, err := client.Put(t.Context(), key, text); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := client.Get(t.Context(), "/registry/pods/default/a")
	if err != nil || string(stored.Kvs[0].Value) != local+"/registry/pods/default/a|value" {
		t.Errorf("etcd has %s: %v", stored.Kvs, err)
	}
	for path, want := range map[string]struct {
		data, err string
		stale     bool
	}{
		"secrets/default/a": {data: "value"},
		"secrets/default/b": {data: "former", stale: true},
		"secrets/default/c": {err: "no key decrypts the value"},
		"secrets/default/d": {err: "malformed value: index out of range"},
	} {
		got, err := store.Get(t.Context(), path)
		var failure *storage.TransformError
		switch {
		case want.err == "" && (err != nil || string(got.Data) != want.data || got.Stale != want.stale):
			t.Errorf("%s: got %q, stale %t, want %+v: %v", path, got.Data, got.Stale, want, err)
		case want.err != "" && (!errors.As(err, &failure) || failure.Error() != want.err || failure.Key != "/registry/"+path):
			t.Errorf("%s: got the error %v, want %q", path, err, want.err)
		}
	}
	var failure *storage.TransformError
	if _, err := store.Create(t.Context(), "pods/default/b", []byte("a secret"), 0); !errors.As(err, &failure) {
		t.Errorf("a value that cannot be encrypted: %v", err)
	}
	_, err = store.List(t.Context(), "secrets/default/", storage.ListOptions{})
	unreadable := `unable to transform key "/registry/secrets/default/c"`
	if !errors.As(err, &failure) || !strings.Contains(err.Error(), unreadable) {
		t.Errorf("a list with an unreadable value: %v", err)
	}
	page, err := store.List(t.Context(), "secrets/default/", storage.ListOptions{Unreadable: true})
	if err != nil || len(page.Values) != 4 || page.Values[1].Err != nil || page.Values[2].Err == nil ||
		page.Protection != storage.EncryptedRemotely {
		t.Errorf("a list with unreadable values: %+v: %v", page, err)
	}
}

// TestEncryptedValuesWithoutEncryption reads an encrypted value in a store that has no transformers.
func TestEncryptedValuesWithoutEncryption(t *testing.T) {
	client := etcdtest.Client(t)
	if _, err := client.Put(t.Context(), "/registry/pods/a", local+"value"); err != nil {
		t.Fatal(err)
	}
	_, err := storage.New(client, "/registry").Get(t.Context(), "pods/a")
	if err == nil || !strings.Contains(err.Error(), "identity transformer tried to read encrypted data") {
		t.Errorf("got the error %v", err)
	}
}

// TestEncryptedEvents decrypts the events of an update. Only a value that a KMS plugin has encrypted is decrypted
// remotely.
func TestEncryptedEvents(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		prefix     string
		protection storage.Protection
		remotely   bool
	}{
		"a key":        {local, storage.EncryptedLocally, false},
		"a KMS plugin": {remote, storage.EncryptedRemotely, true},
	} {
		t.Run(name, func(t *testing.T) {
			store := storage.New(etcdtest.Client(t), "/registry")
			store.Encrypt(&storage.Encryption{
				For: func(string) value.Transformer { return sealed{prefix: c.prefix} }, Remote: true,
			})
			created, err := store.Create(ctx, "pods/a", []byte("1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.Update(ctx, "pods/a", created, []byte("2"), 0); err != nil {
				t.Fatal(err)
			}
			stream, err := store.History(ctx, "pods/", created)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			batch, err := stream.Next(ctx)
			if err != nil || len(batch.Events) != 1 {
				t.Fatalf("got %d events: %v", len(batch.Events), err)
			}
			if got := store.Protection(batch.Events); got != c.protection {
				t.Errorf("got the protection %d, want %d", got, c.protection)
			}
			if got := store.DecryptsRemotely(batch.Events); got != c.remotely {
				t.Errorf("decrypts remotely: %t, want %t", got, c.remotely)
			}
			if err := store.Decrypt(ctx, batch.Events); err != nil {
				t.Fatal(err)
			}
			if e := batch.Events[0]; string(e.Data) != "2" || string(e.Previous) != "1" {
				t.Errorf("decrypted %q after %q", e.Data, e.Previous)
			}
			if err := store.Decrypt(ctx, batch.Events); err == nil {
				t.Error("a value that is not encrypted is decrypted")
			}
		})
	}
}
