package storage_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// streams is an etcd that counts its streams, and ends each of them after some parts if parts is positive.
type streams struct {
	clientv3.KV
	parts  int
	opened atomic.Int32
	last   atomic.Pointer[context.Context] // of the stream opened last
}

func (s *streams) GetStream(
	ctx context.Context, key string, options ...clientv3.OpOption,
) (clientv3.GetStreamChan, error) {
	s.opened.Add(1)
	s.last.Store(&ctx)
	parts, err := s.KV.GetStream(ctx, key, options...)
	if err != nil || s.parts == 0 {
		return parts, err
	}
	cut := make(chan clientv3.RangeStreamResponse, s.parts)
	for range s.parts {
		cut <- <-parts
	}
	close(cut)
	return cut, nil
}

// collection creates pods and returns the revision of the last one.
func collection(t *testing.T, client *clientv3.Client, count int) (revision int64) {
	t.Helper()
	for i := range count {
		created, err := client.Put(t.Context(), fmt.Sprintf("/registry/pods/%04d", i), strings.Repeat("x", 20_000))
		if err != nil {
			t.Fatal(err)
		}
		revision = created.Header.Revision
	}
	return revision
}

// listed is a list that Pages has returned.
type listed struct {
	Values []storage.Value
	Last   storage.Page // the last part, without values
	parts  int
}

func list(t *testing.T, store *storage.Store, options storage.ListOptions) (l listed) {
	t.Helper()
	for page, err := range store.Pages(t.Context(), "pods/", options) {
		if err != nil {
			t.Fatal(err)
		}
		l.Values = append(l.Values, page.Values...)
		page.Values = nil
		l.Last, l.parts = page, l.parts+1
	}
	return l
}

// TestPagesAreEqual compares lists by a stream, by a stream that breaks, and by pages.
func TestPagesAreEqual(t *testing.T) {
	client := etcdtest.Remote(t)
	revision := collection(t, client, 300)
	if _, err := client.Put(t.Context(), "/registry/podsecurities/a", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Delete(t.Context(), "/registry/pods/0299"); err != nil {
		t.Fatal(err)
	}
	etcd := client.KV
	complete, broken := &streams{KV: etcd}, &streams{KV: etcd, parts: 2}
	pages := storage.New(client, "/registry")
	for name, options := range map[string]storage.ListOptions{
		"all":               {},
		"a former revision": {Revision: revision},
		"a limit":           {Limit: 150},
		"the exact number":  {Limit: 299},
		"a greater limit":   {Limit: 1000},
		"a continuation":    {Revision: revision, From: "pods/0100", Limit: 120},
		"a small limit":     {Limit: 3},
		"nothing":           {From: "pods/1"},
	} {
		options.PageSize = 70
		want := list(t, pages, options)
		for kind, streams := range map[string]*streams{"stream": complete, "broken stream": broken} {
			client.KV = streams
			store := storage.New(client, "/registry")
			store.StreamLists(testclock.NewFakePassiveClock(time.Now()))
			got := list(t, store, options)
			if !reflect.DeepEqual(got.Values, want.Values) || !reflect.DeepEqual(got.Last, want.Last) {
				t.Errorf("%s of %s: %d values, last part %+v; pages have %d and %+v",
					kind, name, len(got.Values), got.Last, len(want.Values), want.Last)
			}
			if streams == complete && len(want.Values) > 50 && got.parts < 3 {
				t.Errorf("%s of %s has %d parts", kind, name, got.parts)
			}
		}
	}
	if opened := complete.opened.Load(); opened != 8 {
		t.Errorf("opened %d streams, want 8", opened)
	}
}

// TestPagesWithoutStreams lists from servers that lack the call, which is tried again after 10 minutes.
func TestPagesWithoutStreams(t *testing.T) {
	client, clock := etcdtest.Client(t), testclock.NewFakePassiveClock(time.Now())
	collection(t, client, 5)
	etcd := &streams{KV: client.KV}
	client.KV = etcd
	store := storage.New(client, "/registry")
	store.StreamLists(clock)
	for _, step := range []struct {
		after time.Duration
		want  int32
	}{{0, 1}, {time.Minute, 1}, {10 * time.Minute, 2}, {9 * time.Minute, 2}} {
		clock.SetTime(clock.Now().Add(step.after))
		if got := list(t, store, storage.ListOptions{PageSize: 2}); len(got.Values) != 5 || got.parts != 3 {
			t.Errorf("listed %d values in %d parts", len(got.Values), got.parts)
		}
		if opened := etcd.opened.Load(); opened != step.want {
			t.Errorf("tried %d streams, want %d", opened, step.want)
		}
	}
}

// TestPagesEndStreams leaves a list early, and lists what a caller may leave.
func TestPagesEndStreams(t *testing.T) {
	client := etcdtest.Remote(t)
	collection(t, client, 300)
	etcd := &streams{KV: client.KV}
	client.KV = etcd
	store := storage.New(client, "/registry")
	store.StreamLists(testclock.NewFakePassiveClock(time.Now()))
	for range store.Pages(t.Context(), "pods/", storage.ListOptions{PageSize: 10}) {
		break
	}
	if (*etcd.last.Load()).Err() == nil {
		t.Error("the stream has not ended")
	}
	list(t, store, storage.ListOptions{PageSize: 100, Partial: true})
	if opened := etcd.opened.Load(); opened != 1 {
		t.Errorf("opened %d streams, want 1", opened)
	}
}

// TestListMetrics counts lists by the way in which they are read. The first stream is preceded by a read of the
// revision.
func TestListMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	client, clock := etcdtest.Remote(t), testclock.NewFakePassiveClock(time.Now())
	collection(t, client, 30)
	store := storage.New(client, "/registry")
	store.Measure(storage.NewMetrics(registry, clock), func(string) schema.GroupResource {
		return schema.GroupResource{Resource: "pods"}
	})
	list(t, store, storage.ListOptions{PageSize: 10})
	store.StreamLists(clock)
	list(t, store, storage.ListOptions{PageSize: 10})
	if _, err := store.List(t.Context(), "pods/", storage.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "apiserver_storage_list_duration_seconds" {
				counts[metric.Label[2].GetValue()] = metric.Histogram.GetSampleCount()
			}
		}
	}
	if want := map[string]uint64{"false": 2, "true": 1}; !reflect.DeepEqual(counts, want) {
		t.Errorf("got %v lists, want %v", counts, want)
	}
	const want = `
# HELP etcd_requests_total [ALPHA] Etcd request counts for each operation and object type.
# TYPE etcd_requests_total counter
etcd_requests_total{group="",operation="getCurrentResourceVersion",resource="pods"} 1
etcd_requests_total{group="",operation="list",resource="pods"} 4
etcd_requests_total{group="",operation="listStream",resource="pods"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "etcd_requests_total"); err != nil {
		t.Error(err)
	}
}
