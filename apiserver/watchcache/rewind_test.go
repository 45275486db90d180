package watchcache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// restorable is an etcd that can return to an earlier state while its clients stay connected.
type restorable struct {
	testing.TB
	flags  config.Member
	member *etcd.Member
}

func (r *restorable) stop() {
	r.Helper()
	if err := r.member.Stop(r.Context()); err != nil {
		r.Fatal(err)
	}
}

func (r *restorable) backup() string {
	r.Helper()
	r.stop()
	saved := filepath.Join(r.TempDir(), "backup")
	if err := os.CopyFS(saved, os.DirFS(filepath.Join(r.flags.DataDirectory, "member"))); err != nil {
		r.Fatal(err)
	}
	r.member = etcdtest.Start(r, r.flags)
	return saved
}

func (r *restorable) restore(saved string) {
	r.Helper()
	r.stop()
	data := filepath.Join(r.flags.DataDirectory, "member")
	if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(saved))); err != nil {
		r.Fatal(err)
	}
	r.member = etcdtest.Start(r, r.flags)
}

// newRestorableWorld returns a world with a client that is connected to a restorable etcd.
func newRestorableWorld(t *testing.T) (*world, *restorable) {
	t.Helper()
	r := &restorable{TB: t, flags: etcdtest.Flags(t)}
	r.member = etcdtest.Start(t, r.flags)
	configuration, err := etcd.LocalConfig(t.Context(), r.flags.DataDirectory)
	if err != nil {
		t.Fatal(err)
	}
	configuration.Logger = zap.NewNop()
	reconnect := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}
	configuration.DialOptions = append(configuration.DialOptions,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect}))
	client, err := clientv3.New(configuration)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	w := &world{TB: t, client: client, store: storage.New(client, "/registry")}
	w.caches = New(w.store, Options{Logger: logr.Discard()})
	w.run()
	return w, r
}

// TestStoreGoesBackUnderItsClient restores a backup under running caches. etcd's client resumes its watches after a
// revision that is in the future now, so that no event indicates the restoration.
func TestStoreGoesBackUnderItsClient(t *testing.T) {
	t.Parallel()
	w, r := newRestorableWorld(t)
	pods := w.cache("pods")
	w.create("pods/a/kept", "x;")
	saved := r.backup()
	later := w.create("pods/a/lost", "x;")
	for range 10 {
		later = w.update("pods/a/kept", "y;")
	}
	if got := contents(w.latest(pods), "pods/"); got != "pods/a/kept@y; pods/a/lost@x;" {
		t.Fatal(got)
	}
	watcher := w.watch(pods, later, Scope{})
	r.restore(saved)

	snapshot := w.latest(pods)
	if got := contents(snapshot, "pods/"); got != "pods/a/kept@x;" || snapshot.Revision() >= later {
		t.Errorf("the restored state is %q at revision %d, after %d", got, snapshot.Revision(), later)
	}
	w.expectExpired(watcher)
	if _, ok := pods.At(later); ok {
		t.Error("a state from before the restoration is available")
	}
	watcher = w.watch(pods, snapshot.Revision(), Scope{})
	w.create("pods/a/new", "z;")
	w.expect(watcher, "ADDED pods/a/new@z;")
	w.expectNothing(pods, watcher)
}

// TestStoreGoesBackUnseen restores a backup that is older than a revision which a call of Current has returned.
// checkRewind detects the restoration without further readers.
func TestStoreGoesBackUnseen(t *testing.T) {
	t.Parallel()
	w, r := newRestorableWorld(t)
	pods := w.cache("pods")
	w.create("pods/a/kept", "x;")
	w.latest(pods)
	saved := r.backup()
	for range 10 {
		w.update("pods/a/kept", "y;")
	}
	want, err := w.caches.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rewinds, highest := w.caches.progress.position()
	if highest < want {
		t.Errorf("the store returned %d, remembered %d", want, highest)
	}
	r.restore(saved)
	for deadline := time.Now().Add(20 * time.Second); ; {
		w.caches.checkRewind(t.Context())
		if now, _ := w.caches.progress.position(); now > rewinds {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the restoration was not detected")
		}
	}
	if got := contents(w.latest(pods), "pods/"); got != "pods/a/kept@x;" {
		t.Error(got)
	}
}

func TestStoreGoesBackInTime(t *testing.T) {
	w := newStoppedWorld(t, Options{})
	w.create("pods/a/1", "x;")
	stop := w.follow(0)
	pods := w.cache("pods")
	watcher := w.watch(pods, w.latest(pods).Revision(), Scope{})
	position := stop() + 1000 // as if the store had reached it before
	w.caches.progress.advance(position)
	w.follow(position)
	w.expectExpired(watcher)
	if got := w.latest(pods); got.Revision() >= position || contents(got, "pods/") != "pods/a/1@x;" {
		t.Errorf("revision %d, contents %s", got.Revision(), contents(got, "pods/"))
	}
}
