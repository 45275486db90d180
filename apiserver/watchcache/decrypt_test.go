package watchcache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"quorate.dev/apiserver/storage"
)

// kms is the prefix of the values that plugin can decrypt.
const kms = "k8s:enc:kms:v2:plugin:"

// plugin is a KMS plugin that answers only once up is closed. It decrypts values that begin with kms.
type plugin struct {
	up      chan struct{}
	limited *atomic.Bool // set if there was a deadline for decrypting a value without the prefix
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

// TestSlowDecryption has a KMS plugin that does not answer. Only the collection whose events it must decrypt is
// delayed, and the watchers of that collection get the events when the plugin answers again.
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
	w.expect(all, "ADDED secrets/ns/b@x;") // a watch that is ahead of the stream would expire
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

// refusing is a transformer that fails to decrypt while it is set.
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

// If the history of a watch cannot be decrypted, the watch expires, as if the events were compacted. It can be tried
// again.
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

// keyed is a transformer that represents an encryption configuration with some keys. Each prefix is the mark of the
// values that one key has encrypted: keyed decrypts values that begin with one of its prefixes, and fails for others.
// An empty prefix lets keyed read values that are not encrypted.
type keyed struct{ prefixes atomic.Pointer[[]string] }

func newKeyed(prefixes ...string) *keyed {
	k := &keyed{}
	k.set(prefixes...)
	return k
}

func (k *keyed) set(prefixes ...string) { k.prefixes.Store(&prefixes) }

func (k *keyed) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	for _, prefix := range *k.prefixes.Load() {
		if plain, found := strings.CutPrefix(string(data), prefix); found &&
			(prefix != "" || !strings.HasPrefix(plain, "k8s:enc:")) {
			return []byte(plain), false, nil
		}
	}
	return nil, false, errors.New("no matching key was found for the provided transformer")
}

func (*keyed) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

const oneKey, otherKey = "k8s:enc:aescbc:v1:one:", "k8s:enc:aescbc:v1:other:"

// TestRemovedKey changes the keys while all values are in the cache. A collection with a value that the new keys
// cannot decrypt is withdrawn until the value can be decrypted again; other collections stay.
func TestRemovedKey(t *testing.T) {
	for name, c := range map[string]struct {
		stored        []string // bytes of the objects of one collection
		before, after []string // prefixes of the values that can be decrypted
		verify        func(*world, *Cache)
		unreadable    bool
	}{
		"rotated": {
			stored: []string{otherKey, otherKey}, before: []string{oneKey, otherKey}, after: []string{otherKey},
		},
		"removed": {
			stored: []string{otherKey, oneKey}, before: []string{oneKey, otherKey}, after: []string{otherKey}, unreadable: true,
		},
		"removed, in Run": {stored: []string{oneKey}, before: []string{oneKey}, verify: verifyInRun, unreadable: true},
		"plain, never read": {
			stored: []string{"", ""}, before: []string{oneKey, ""}, after: []string{oneKey}, unreadable: true,
		},
		"plain, still read": {stored: []string{"", ""}, before: []string{oneKey, ""}, after: []string{otherKey, ""}},
		"no longer encrypted": {
			stored: []string{"", oneKey}, before: []string{oneKey, ""}, after: []string{""}, unreadable: true,
		},
		"plugin without the key": {
			stored: []string{kms, kms}, before: []string{kms}, verify: checkAll, unreadable: true,
		},
		"plugin": {
			stored: []string{kms, kms}, before: []string{kms}, after: []string{kms}, verify: checkAll,
		},
		"keys do not change unseen": {stored: []string{oneKey}, before: []string{oneKey}, verify: checkAll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hasty, transformer := &fastClock{}, newKeyed(append([]string{"plain:"}, c.before...)...)
			w := newStoppedWorld(t, Options{Clock: hasty})
			w.store.Encrypt(&storage.Encryption{For: func(string) value.Transformer { return transformer }})
			w.run()
			for i, prefix := range c.stored {
				w.create("secrets/ns/"+string(rune('a'+i)), prefix+"x;")
			}
			w.create("pods/ns/a", "plain:x;")
			secrets, pods := w.cache("secrets"), w.cache("pods")
			w.latest(pods)
			all := w.watch(secrets, w.latest(secrets).Revision(), Scope{})
			w.create("secrets/ns/m", "plain:m;")
			w.expect(all, "ADDED secrets/ns/m@m;") // a watch that is ahead of the stream would expire
			hasty.fast.Store(true)

			transformer.set(append([]string{"plain:"}, c.after...)...)
			if c.verify == nil {
				c.verify = func(w *world, cache *Cache) { cache.verifyDecryption(w.Context(), 0) }
			}
			c.verify(w, secrets)
			if _, err := pods.Snapshot(t.Context(), 0); err != nil {
				t.Errorf("another collection: %v", err)
			}
			_, err := secrets.Snapshot(t.Context(), 0)
			if c.unreadable != errors.Is(err, ErrTooNew) || (!c.unreadable && err != nil) {
				t.Fatalf("after the change: %v", err)
			}
			transformer.set(append([]string{"plain:"}, c.before...)...)
			hasty.fast.Store(false)
			if err := secrets.AwaitInitialized(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			w.create("secrets/ns/z", c.before[0]+"z;")
			w.expect(all, "ADDED secrets/ns/z@z;")
		})
	}
}

// verifyInRun calls VerifyDecryption and waits until Run has withdrawn a collection.
func verifyInRun(w *world, c *Cache) {
	w.caches.VerifyDecryption()
	for c.Loaded() && w.Context().Err() == nil {
		runtime.Gosched()
	}
}

// checkAll runs one consistency check.
func checkAll(w *world, c *Cache) { c.checkConsistency(w.Context()) }

// failing is a transformer that refuses some values before it recovers.
type failing struct{ failures atomic.Int32 }

func (f *failing) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, false, errors.New("the KMS plugin is not available")
	}
	return []byte(strings.TrimPrefix(string(data), kms)), false, nil
}

func (*failing) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

// TestPluginOutage checks that a consistency check does not withdraw a collection because a KMS plugin fails for a
// moment.
func TestPluginOutage(t *testing.T) {
	hasty, transformer := &fastClock{}, &failing{}
	w := newStoppedWorld(t, Options{Clock: hasty})
	w.store.Encrypt(&storage.Encryption{Remote: true, For: func(string) value.Transformer { return transformer }})
	w.run()
	w.create("secrets/ns/a", kms+"x;")
	secrets := w.cache("secrets")
	w.latest(secrets)
	hasty.fast.Store(true)
	for failures, withdrawn := range []bool{false, false, true} {
		before := secrets.stats.initializations.Load()
		transformer.failures.Store(int32(failures))
		secrets.checkConsistency(t.Context())
		if err := secrets.AwaitInitialized(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if again := secrets.stats.initializations.Load() > before; again != withdrawn || transformer.failures.Load() >= 0 {
			t.Errorf("%d failures: withdrawn %t, %d failures left", failures, again, transformer.failures.Load())
		}
	}
}

// counted is an etcd that counts the values in its responses.
type counted struct {
	clientv3.KV
	largest, total atomic.Int64
}

func (c *counted) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	response, err := c.KV.Get(ctx, key, options...)
	if err == nil {
		values := int64(len(response.Kvs))
		c.total.Add(values)
		c.largest.Store(max(c.largest.Load(), values))
	}
	return response, err
}

// TestVerificationReadsPages checks that the verification of a large collection holds few values at the same time.
func TestVerificationReadsPages(t *testing.T) {
	const objects, batch = 1100, 100
	w := newStoppedWorld(t, Options{})
	reads := &counted{KV: w.client.KV}
	w.client.KV = reads
	w.run()
	for first := 0; first < objects; first += batch {
		var puts []clientv3.Op
		for i := range batch {
			puts = append(puts, clientv3.OpPut(w.store.Key(fmt.Sprintf("secrets/ns/%d", first+i)), "x;"))
		}
		if _, err := w.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	secrets := w.cache("secrets")
	w.latest(secrets)
	secrets.protect(storage.EncryptedRemotely)
	reads.largest.Store(0)
	reads.total.Store(0)
	err := secrets.decryptAll(t.Context())
	if total, largest := reads.total.Load(), reads.largest.Load(); err != nil || total != objects || largest > 500 {
		t.Errorf("read %d values, up to %d at the same time; %v", total, largest, err)
	}
}

// TestKeyRemovedDuringRead removes a key while the collection is being listed: the list is repeated with the new
// keys.
func TestKeyRemovedDuringRead(t *testing.T) {
	w := newWorld(t, Options{})
	w.create("secrets/ns/a", "x;")
	secrets := w.cache("secrets")
	<-w.caches.live // Run, whose first jump makes it list loaded caches again, has jumped
	epoch, _ := secrets.begin()
	entries, revision, err := secrets.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := secrets.decryptAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if secrets.install(epoch, entries, revision) {
		t.Error("installed what was read before the keys changed")
	}
}

// TestKeyRemovedAtTheEndOfARead removes a key while a list is installed: either the list is repeated, or its values
// are verified.
func TestKeyRemovedAtTheEndOfARead(t *testing.T) {
	w := newWorld(t, Options{})
	w.create("secrets/ns/a", "x;")
	secrets := w.cache("secrets")
	<-w.caches.live // as above
	for range 1000 {
		epoch, _ := secrets.begin()
		entries, revision, err := secrets.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unread := make(chan bool)
		go func() { unread <- secrets.restartFetch() }()
		if installed := secrets.install(epoch, entries, revision); installed == <-unread {
			t.Fatalf("installed %t, so that the values must be verified %t", installed, installed)
		}
		secrets.invalidate(false)
	}
}
