package workload

import (
	"context"
	"fmt"
	"sync"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	quotaLimit    = 3 // maximum number of ConfigMaps in a namespace
	quotaCreators = 3
	quotaName     = "limit"
	quotaResource = core.ResourceName("count/configmaps")
)

// quota creates namespaces with a ResourceQuota, and concurrently creates more objects in each of them than the quota
// permits. The check requires that no namespace has more objects than its quota. Admission charges the quota by
// compare-and-swap of its status. No quota controller runs, so this workload writes the first status.
//
// A server does not enforce a new quota until its informer has received it, as in Kubernetes. Therefore, the first
// status declares the quota as used up. When all servers reject an object, the status is reset.
type quota struct {
	crew
	names []string // names of the namespaces
}

func (w *quota) Start(ctx context.Context) error {
	round := 0
	w.work(ctx, 0, func(ctx context.Context, c *client) {
		round++
		name := fmt.Sprintf("quota-%d", round)
		if w.prepare(ctx, c, name) != nil {
			return
		}
		w.mu.Lock()
		w.names = append(w.names, name)
		w.mu.Unlock()
		w.fill(ctx, c, name)
		_ = w.read(ctx, c.any(), name) // Check reads the final state, so an error here is ignored
	})
	return nil
}

// prepare creates a namespace with a quota that all servers enforce.
func (w *quota) prepare(ctx context.Context, c *client, name string) error {
	_, err := request(ctx, func(ctx context.Context) (*core.Namespace, error) {
		return c.any().CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}},
			meta.CreateOptions{})
	})
	if err != nil {
		return err
	}
	hard := core.ResourceList{quotaResource: *resource.NewQuantity(quotaLimit, resource.DecimalSI)}
	created, err := request(ctx, func(ctx context.Context) (*core.ResourceQuota, error) {
		return c.any().CoreV1().ResourceQuotas(name).Create(ctx, &core.ResourceQuota{
			ObjectMeta: meta.ObjectMeta{Name: quotaName}, Spec: core.ResourceQuotaSpec{Hard: hard},
		}, meta.CreateOptions{})
	})
	if err != nil {
		return err
	}
	created.Status = core.ResourceQuotaStatus{Hard: hard, Used: hard}
	full, err := request(ctx, func(ctx context.Context) (*core.ResourceQuota, error) {
		return c.any().CoreV1().ResourceQuotas(name).UpdateStatus(ctx, created, meta.UpdateOptions{})
	})
	if err != nil {
		return err
	}
	for _, server := range c.clients {
		if err := enforced(ctx, server, name); err != nil {
			return err
		}
	}
	full.Status.Used = core.ResourceList{quotaResource: resource.MustParse("0")}
	_, err = request(ctx, func(ctx context.Context) (*core.ResourceQuota, error) {
		return c.any().CoreV1().ResourceQuotas(name).UpdateStatus(ctx, full, meta.UpdateOptions{})
	})
	return err
}

// enforced waits until a server rejects an object because of the quota.
func enforced(ctx context.Context, server kubernetes.Interface, name string) error {
	ctx, cancel := limit(ctx)
	defer cancel()
	return eventually(ctx, func(ctx context.Context) error {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "probe"}}
		_, err := server.CoreV1().ConfigMaps(name).Create(ctx, object, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the quota of %s is not enforced yet", name)
		}
		return err
	})
}

// fill concurrently creates more objects than the quota permits.
func (w *quota) fill(ctx context.Context, c *client, name string) {
	var creators sync.WaitGroup
	for creator := range quotaCreators {
		server := c.any()
		creators.Go(func() {
			for number := range quotaLimit {
				object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("object-%d-%d", creator, number)}}
				_, _ = request(ctx, func(ctx context.Context) (*core.ConfigMap, error) { // read counts the objects
					return server.CoreV1().ConfigMaps(name).Create(ctx, object, meta.CreateOptions{})
				})
			}
		})
	}
	creators.Wait()
}

// read counts the objects of a namespace and records a fault if there are more than the quota permits.
func (w *quota) read(ctx context.Context, server kubernetes.Interface, name string) error {
	list, err := request(ctx, func(ctx context.Context) (*core.ConfigMapList, error) {
		return server.CoreV1().ConfigMaps(name).List(ctx, meta.ListOptions{})
	})
	if err != nil {
		return err
	}
	if len(list.Items) > quotaLimit {
		w.observe(fmt.Errorf("quota: namespace %s has %d objects, its quota is %d", name, len(list.Items), quotaLimit))
		return nil
	}
	w.observe(nil)
	return nil
}

func (w *quota) Check(ctx context.Context) []error {
	var failures []error
	for _, name := range w.names {
		failures = append(failures, w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
			return w.read(ctx, server, name)
		})...)
	}
	return append(w.found(), failures...)
}
