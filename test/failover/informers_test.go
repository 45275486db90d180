package failover

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	patience     = 60 * time.Second
	pollInterval = 100 * time.Millisecond
	prefix       = "/registry/configmaps/"
)

// watching holds informers, each of one namespace and shard, that together receive every object once.
type watching struct {
	informers []cache.SharedIndexInformer
	// backwards counts objects that an informer received at an older revision than before.
	backwards atomic.Int64
}

// watch starts the informers, spread over the replicas, and waits until all have synced.
func (r *replicas) watch(size size) *watching {
	r.Helper()
	w := &watching{}
	clients := []int{0, 1, 0, 1}
	var synced []cache.InformerSynced
	for i := range size.informers {
		client := r.client(clients[i%len(clients)])
		informer := informers.NewFilteredConfigMapInformer(client, namespace(i/shards), 0, nil, func(o *meta.ListOptions) {
			o.LabelSelector = fmt.Sprintf("shard=%d", i%shards)
		})
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
			if revision(r, after.(*core.ConfigMap)) < revision(r, before.(*core.ConfigMap)) {
				w.backwards.Add(1)
			}
		}})
		if err != nil {
			r.Fatal(err)
		}
		go informer.RunWithContext(r.Context())
		w.informers, synced = append(w.informers, informer), append(synced, informer.HasSynced)
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		r.Fatal("the informers were not filled in time")
	}
	return w
}

func revision(r *replicas, object meta.Object) int64 {
	n, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		r.Error(err)
	}
	return n
}

// seen maps the name of each object that an informer has to its revision.
func (w *watching) seen(r *replicas) map[string]int64 {
	all := map[string]int64{}
	for _, informer := range w.informers {
		for _, object := range informer.GetStore().List() {
			o := object.(*core.ConfigMap)
			all[o.Namespace+"/"+o.Name] = revision(r, o)
		}
	}
	return all
}

// stored maps the name of each object in etcd to its revision.
func (r *replicas) stored() map[string]int64 {
	r.Helper()
	response, err := r.etcd.Get(r.Context(), prefix+namespacePrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		r.Fatal(err)
	}
	all := map[string]int64{}
	for _, kv := range response.Kvs {
		all[strings.TrimPrefix(string(kv.Key), prefix)] = kv.ModRevision
	}
	return all
}

// mustEqualStorage waits until the informers have exactly the stored objects, by name and revision.
func (w *watching) mustEqualStorage(r *replicas) {
	r.Helper()
	want := r.stored()
	err := wait.PollUntilContextTimeout(r.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		return maps.Equal(want, w.seen(r)), nil
	})
	if err != nil {
		got, different := w.seen(r), []string{}
		for name, at := range want {
			if got[name] != at {
				different = append(different, fmt.Sprintf("%s: stored %d, seen %d", name, at, got[name]))
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok {
				different = append(different, name+" is not stored any more")
			}
		}
		r.Errorf("the informers differ from storage in %d objects of %d: %q", len(different), len(want),
			different[:min(5, len(different))])
	}
	if n := w.backwards.Load(); n > 0 {
		r.Errorf("%d objects went back in time", n)
	}
}
