package handlers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/storage"
)

// TestWatchOfAClientThatDoesNotRead has more to send than fits between server and client. The handler ends, and so does
// the stream; with HTTP/2 its connection serves others.
func TestWatchOfAClientThatDoesNotRead(t *testing.T) {
	const large, count = 1 << 20, 20
	store := storage.New(etcdtest.Client(t), "/registry")
	r, target := configMaps(t, store)
	stored, err := target.Version.Codec.Store(t.Context(), &corev1.ConfigMap{
		Data: map[string]string{"k": strings.Repeat("x", large)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if _, err := store.Create(t.Context(), fmt.Sprint("configmaps/a/", i), stored, 0); err != nil {
			t.Fatal(err)
		}
	}
	h := New(Options{Registry: r, Clock: clock.RealClock{}, MinWatchTimeout: time.Hour})
	h.writeTimeout = 100 * time.Millisecond
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			ended := make(chan error, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/other" {
					return
				}
				record := request.Begin(r, time.Now(), testr.New(t))
				c := &call{Handlers: h, w: w, r: r.WithContext(record), record: record, target: target}
				ended <- c.watch(record)
			}))
			server.EnableHTTP2 = protocol == "HTTP/2.0"
			server.StartTLS()
			defer server.Close()
			response, err := server.Client().Get(server.URL)
			if err != nil || response.Proto != protocol {
				t.Fatal(response, err)
			}
			defer response.Body.Close()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the handler still waits for its client")
			}
			if size, err := io.Copy(io.Discard, response.Body); err == nil || size >= count*large {
				t.Errorf("the client got %d bytes, %v", size, err)
			}
			if other, err := server.Client().Get(server.URL + "/other"); err != nil || other.StatusCode != http.StatusOK {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestWatchOfASlowClient reads now and then only, but reads.
func TestWatchOfASlowClient(t *testing.T) {
	writer := &slow{ResponseWriter: httptest.NewRecorder()}
	guard := newWriteGuard(writer, time.Hour)
	defer guard.stop()
	c := &call{Handlers: New(Options{}), w: writer, r: httptest.NewRequest(http.MethodGet, "/", nil)}
	s := &stream{call: c, guard: guard}
	if !s.send(make([]byte, 3*writeChunk+1)) || writer.writes != 4 {
		t.Errorf("%d pieces were written", writer.writes)
	}
	guard.check() // nothing is being written
	if writer.deadline != nil {
		t.Errorf("between writes: cut off at %v", writer.deadline)
	}
	guard.begin()
	guard.check()
	if writer.deadline != nil {
		t.Errorf("before its deadline: cut off at %v", writer.deadline)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer context.AfterFunc(ctx, func() { guard.shorten(0) })()
	cancel()
	guard.mu.Lock()
	for writer.deadline == nil {
		guard.mu.Unlock() // to the timer
		guard.mu.Lock()
	}
	guard.mu.Unlock()
	guard.end()
}

// slow is a response that counts writes and remembers when it was cut off. The guard's lock guards it.
type slow struct {
	http.ResponseWriter
	writes   int
	deadline *time.Time
}

func (s *slow) Write(p []byte) (int, error) {
	s.writes++
	return len(p), nil
}

func (s *slow) SetWriteDeadline(deadline time.Time) error {
	s.deadline = &deadline
	return nil
}
