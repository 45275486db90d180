package page

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/replica"
)

// keep is how long all readers of the page share one result, to limit the load on the servers.
const keep = time.Second

// readTimeout limits a read.
const readTimeout = 10 * time.Second

// Reader reads the clusters of a management API server. It is safe for concurrent use.
type Reader struct {
	Config     *rest.Config
	Client     client.Reader
	Directory  string
	Kubeconfig func(namespace, name string) string

	mu   sync.Mutex
	last Data
	// Samples of the last read; rates are computed from two samples.
	samples map[client.ObjectKey]map[string]replica.Sample
}

// Read returns the present state of the clusters, at most keep old. An error is part of the result. The read does not
// end with ctx, because other readers may wait for the same result.
func (r *Reader) Read(ctx context.Context) Data {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last.Now) < keep {
		return r.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	data := Data{Now: time.Now(), Directory: r.Directory}
	var list v1alpha1.ApiServerClusterList
	if err := r.Client.List(ctx, &list); err != nil {
		data.Error = err.Error()
		r.last = data
		return data
	}
	samples := map[client.ObjectKey]map[string]replica.Sample{}
	for i := range list.Items {
		key := client.ObjectKeyFromObject(&list.Items[i])
		in, err := overview.Collect(ctx, r.Client, key, data.Now)
		if err != nil {
			continue // the cluster was deleted after the list
		}
		if sampler, err := replica.NewSampler(ctx, r.Config, key.Namespace, key.Name); err == nil {
			in.Earlier = r.samples[key]
			in.Sample(ctx, sampler)
			in.Notes = nil // not shown: a starting replica has no metrics yet
		}
		samples[key] = in.Samples
		data.Clusters = append(data.Clusters, Cluster{overview.Build(in), r.Kubeconfig(key.Namespace, key.Name)})
	}
	slices.SortFunc(data.Clusters, func(a, b Cluster) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	r.last, r.samples = data, samples
	return data
}
