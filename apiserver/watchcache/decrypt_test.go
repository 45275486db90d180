package watchcache

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/storage/value"

	"quorate.dev/apiserver/storage"
)

// kms begins the values that plugin can decrypt.
const kms = "k8s:enc:kms:v2:plugin:"

// plugin is a transformer that can decrypt values which begin with kms only while it is up. Otherwise it does not answer.
type plugin struct {
	up      chan struct{}
	limited *atomic.Bool // set if the time to decrypt another value is limited
}

func (p plugin) TransformFromStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	plain, sealed := strings.CutPrefix(string(data), kms)
	if !sealed {
		if _, limited := ctx.Deadline(); limited {
			p.limited.Store(true)
		}
		return data, false, nil
	}
	select {
	case <-p.up:
		return []byte(plain), false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (plugin) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

// TestSlowDecryption: a KMS plugin that does not answer delays only the collection whose events it has to decrypt. Its
// watchers get the events when it answers again.
func TestSlowDecryption(t *testing.T) {
	hasty := &fastClock{}
	w := newStoppedWorld(t, Options{Clock: hasty})
	up, limited := make(chan struct{}), &atomic.Bool{}
	w.store.Encrypt(&storage.Encryption{Remote: true, For: func(string) value.Transformer { return plugin{up, limited} }})
	w.run()
	secrets, pods := w.cache("secrets"), w.cache("pods")
	created := w.create("secrets/ns/a", "x;")
	w.latest(secrets)
	all, others := w.watch(secrets, created, Scope{}), w.watch(pods, created, Scope{})
	w.latest(pods)
	w.create("secrets/ns/b", "x;")
	w.expect(all, "ADDED secrets/ns/b@x;") // a watch that is ahead of the stream of events would expire
	if limited.Load() {
		t.Error("got a time limit for an event that no plugin encrypted")
	}

	hasty.fast.Store(true)
	w.update("secrets/ns/a", kms+"y;")
	w.create("pods/ns/a", "x;")
	w.expect(others, "ADDED pods/ns/a@x;")
	w.latest(pods)
	if _, err := secrets.Snapshot(t.Context(), 0); !errors.Is(err, ErrTooNew) || !secrets.Initializing() {
		t.Errorf("a collection with a value that cannot be decrypted: %v", err)
	}
	close(up)
	w.expect(all, "MODIFIED secrets/ns/a@y;")
	w.update("secrets/ns/a", kms+"z;")
	w.expect(all, "MODIFIED secrets/ns/a@z;")
	if entry, ok := w.latest(secrets).Get("secrets/ns/a"); !ok || string(entry.Stored()) != "z;" {
		t.Errorf("got %v", entry)
	}
}

// refusing is a transformer that decrypts nothing while it is set.
type refusing struct{ atomic.Bool }

func (r *refusing) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	plain, sealed := strings.CutPrefix(string(data), "sealed:")
	if sealed && r.Load() {
		return nil, false, errors.New("refused")
	}
	return []byte(plain), false, nil
}

func (*refusing) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

// A watch whose history cannot be decrypted expires, as if the events were compacted. It can be tried again.
func TestHistoryThatCannotBeDecrypted(t *testing.T) {
	w, transformer := newStoppedWorld(t, Options{}), &refusing{}
	w.store.Encrypt(&storage.Encryption{For: func(string) value.Transformer { return transformer }})
	start := w.create("secrets/ns/a", "x;")
	first := w.create("secrets/ns/b", "sealed:x;")
	if _, err := w.store.Delete(t.Context(), "secrets/ns/b", first); err != nil {
		t.Fatal(err)
	}
	transformer.Store(true)
	w.run()
	secrets := w.cache("secrets")
	w.latest(secrets)
	w.expectExpired(w.watch(secrets, start, Scope{}))
	transformer.Store(false)
	w.expect(w.watch(secrets, start, Scope{}), "ADDED secrets/ns/b@x;", "DELETED secrets/ns/b@x;")
}
