package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// largeObjects are handlers of config maps that exceed freeMemory by far.
type largeObjects struct {
	*Handlers
	target resource.Target
}

func newLargeObjects(t testing.TB) largeObjects {
	t.Helper()
	store := storage.New(etcdtest.Client(t), "/registry")
	r, target := configMaps(t, store)
	stored, err := target.Version.Codec.Store(t.Context(), &corev1.ConfigMap{
		Data: map[string]string{"k": strings.Repeat("x", freeMemory)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if _, err := store.Create(t.Context(), fmt.Sprint("configmaps/a/", i), stored, 0); err != nil {
			t.Fatal(err)
		}
	}
	return largeObjects{New(Options{Registry: r}), target}
}

// list responds with all of them and returns the size of the body.
func (h largeObjects) list(ctx context.Context, t *testing.T, o output) (int, error) {
	t.Helper()
	page, err := h.Registry.List(t.Context(), h.target, registry.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answer, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	c := &call{
		Handlers: h.Handlers, w: answer, r: r, record: request.Begin(r, time.Now(), testr.New(t)),
		target: h.target, output: o,
	}
	defer c.shrinkMemory(0)
	err = c.sendPage(page)
	return answer.Body.Len(), err
}

// endsWhenWaited is a context that ends as soon as a caller waits for it.
type endsWhenWaited struct {
	context.Context
	end func()
}

func (i endsWhenWaited) Done() <-chan struct{} {
	i.end()
	return i.Context.Done()
}

// TestEncodingEndsWithItsContext encodes nothing after the end of the request.
func TestEncodingEndsWithItsContext(t *testing.T) {
	h := newLargeObjects(t)
	page, err := h.Registry.List(t.Context(), h.target, registry.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, o := range map[string]output{"whole": {}, "metadata": {as: metadataOnly, group: metav1.SchemeGroupVersion}} {
		c := &call{
			Handlers: h.Handlers, r: httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx), target: h.target, output: o,
		}
		if _, err := page.Encoded(ctx, c.format()); !errors.Is(err, context.Canceled) || page.Entries[0].Keeps(c.format()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResponseMemory uses up the limit: responses that need memory of their own wait, those of cached encodings do not.
func TestResponseMemory(t *testing.T) {
	h := newLargeObjects(t)
	all, err := h.responseMemory.Acquire(t.Context(), maxResponseMemory)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]output{"not cached yet": {}, "pretty": {pretty: true}, "YAML": {media: codec.YAML}} {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := h.list(endsWhenWaited{ctx, cancel}, t, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, over the limit: %v", name, err)
		}
	}
	all.Release()
	if _, err := h.list(t.Context(), t, output{}); err != nil {
		t.Fatal(err)
	}
	if all, err = h.responseMemory.Acquire(t.Context(), maxResponseMemory); err != nil {
		t.Fatal(err)
	}
	if size, err := h.list(t.Context(), t, output{}); err != nil || size < 4*freeMemory {
		t.Errorf("cached, over the limit: %d bytes, %v", size, err)
	}
	all.Release()
	for _, o := range []output{{pretty: true}, {media: codec.YAML}} {
		if size, err := h.list(t.Context(), t, o); err != nil || size < 4*freeMemory {
			t.Errorf("below the limit: %d bytes, %v", size, err)
		}
	}
	if all, err = h.responseMemory.Acquire(t.Context(), maxResponseMemory); err != nil {
		t.Fatal(err) // a response has not released its memory
	}
	all.Release()
}

// seat records whether it is held.
type seat struct{ held bool }

func (s *seat) Release()     { s.held = false }
func (s *seat) Retake() bool { s.held = true; return true }

// TestWaitingReadsHoldNoSeat uses up the limit: a read of a large object waits without its seat and without its body. A
// write, whose result is in memory, keeps its seat until the result is sent.
func TestWaitingReadsHoldNoSeat(t *testing.T) {
	h := newLargeObjects(t)
	page, err := h.Registry.List(t.Context(), h.target, registry.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	respond := func(ctx context.Context, verb string, send func(*call) error) (held bool, err error) {
		answer, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
		record, taken := request.Begin(r, time.Now(), testr.New(t)), &seat{held: true}
		record.Info.Verb, record.Seat = verb, taken
		c := &call{Handlers: h.Handlers, w: answer, r: r, record: record, target: h.target}
		defer c.shrinkMemory(0)
		err = send(c)
		return taken.held, err
	}
	get := func(c *call) error { return c.sendEntry(c.r.Context(), page.Entries[0]) }
	update := func(c *call) error { return c.send(http.StatusOK, make([]byte, 2*freeMemory)) }
	for name, test := range map[string]struct {
		verb     string
		send     func(*call) error
		heldThen bool
	}{"read": {"get", get, false}, "write": {"update", update, true}} {
		t.Run(name, func(t *testing.T) {
			all, err := h.responseMemory.Acquire(t.Context(), maxResponseMemory)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if held, err := respond(endsWhenWaited{ctx, cancel}, test.verb, test.send); !errors.Is(err, context.Canceled) ||
				held != test.heldThen {
				t.Errorf("over the limit: %v, seat held: %t", err, held)
			}
			all.Release()
			if held, err := respond(t.Context(), test.verb, test.send); err != nil || held {
				t.Errorf("when the response is sent: %v, seat held: %t", err, held)
			}
		})
	}
}

// TestMemoryEstimates compares the estimates with the sizes of responses.
func TestMemoryEstimates(t *testing.T) {
	h := newLargeObjects(t)
	page, err := h.Registry.List(t.Context(), h.target, registry.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := func(o output) int64 {
		c := &call{Handlers: h.Handlers, r: httptest.NewRequest(http.MethodGet, "/", nil), target: h.target, output: o}
		return c.listMemory(c.format(), page.Entries)
	}
	const stored = 4 * freeMemory
	if json := of(output{}); json < stored || json > 3*stored {
		t.Errorf("JSON: %d bytes for %d", json, stored)
	}
	if pretty, json := of(output{pretty: true}), of(output{}); pretty != json*(1+prettyFactor) {
		t.Errorf("pretty: %d bytes, JSON %d", pretty, json)
	}
	if metadata := of(output{as: metadataOnly, group: metav1.SchemeGroupVersion}); metadata > 4*(2<<10) {
		t.Errorf("metadata: %d bytes", metadata)
	}
	if _, err := h.list(t.Context(), t, output{}); err != nil {
		t.Fatal(err)
	}
	if json := of(output{}); json != 0 {
		t.Errorf("cached encodings take %d bytes", json)
	}
}
