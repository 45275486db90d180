package sandbox

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"quorate.dev/config"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/sandbox/progress"
)

// demo is the cluster that a sandbox creates unless --empty is set.
var demo = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "demo"}

var (
	definitions = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	clusterResource = v1alpha1.GroupVersion.WithResource("apiserverclusters")
)

// installResources applies the operator's CustomResourceDefinitions and roles, and waits until the definitions are
// served.
func (s *sandbox) installResources(ctx context.Context, restConfig *rest.Config) error {
	client, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	files, err := fs.Glob(config.CRDs, "crd/*.yaml")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := install(ctx, client, file); err != nil {
			return fmt.Errorf("install %s: %w", filepath.Base(file), err)
		}
	}
	return installRBAC(ctx, client)
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: "quorate-sandbox", Force: true}
}

func install(ctx context.Context, client dynamic.Interface, file string) error {
	content, err := config.CRDs.ReadFile(file)
	if err != nil {
		return err
	}
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(content, &definition.Object); err != nil {
		return err
	}
	api := client.Resource(definitions)
	applied, err := api.Apply(ctx, definition.GetName(), definition, applyOptions())
	if err != nil || established(applied) {
		return err
	}
	options := metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", applied.GetName()).String(),
		ResourceVersion: applied.GetResourceVersion(),
	}
	watcher, err := api.Watch(ctx, options)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if object, ok := event.Object.(*unstructured.Unstructured); ok && established(object) {
			return nil
		}
	}
	return fmt.Errorf("%s did not become established", applied.GetName())
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		if fields["type"] == "Established" && fields["status"] == "True" {
			return true
		}
	}
	return false
}

// clusters creates demo unless --empty is set, and then prints all clusters until ctx is done.
func (s *sandbox) clusters(ctx context.Context, config *rest.Config, started time.Time) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if !s.settings.empty {
		if err := s.applyDemo(ctx, client); err != nil {
			return fmt.Errorf("create %s: %w", demo.Name, err)
		}
	}
	f := &clusterWatcher{sandbox: s, started: started, wake: make(chan struct{}, 1), shown: map[string]*row{}}
	core := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	custom := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	f.secrets, f.clusters = core.Core().V1().Secrets().Lister(), custom.ForResource(clusterResource).Lister()
	for _, informer := range []cache.SharedIndexInformer{
		core.Core().V1().Secrets().Informer(), custom.ForResource(clusterResource).Informer(),
	} {
		if _, err := informer.AddEventHandler(f); err != nil {
			return err
		}
	}
	core.StartWithContext(ctx)
	custom.Start(ctx.Done())
	core.WaitForCacheSync(ctx.Done())
	custom.WaitForCacheSync(ctx.Done())
	return f.run(ctx)
}

// applyDemo creates demo. If demo exists, applyDemo only sets its replicas, and only if --replicas is set.
func (s *sandbox) applyDemo(ctx context.Context, client dynamic.Interface) error {
	api := client.Resource(clusterResource).Namespace(demo.Namespace)
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ApiServerCluster",
		"metadata": map[string]any{"name": demo.Name, "namespace": demo.Namespace},
		"spec":     s.demoSpec(),
	}}
	_, err := api.Create(ctx, cluster, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) || !s.settings.replicasSet {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, s.settings.replicas)
	_, err = api.Patch(ctx, demo.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// demoSpec returns the spec with which demo is created.
func (s *sandbox) demoSpec() map[string]any {
	spec := map[string]any{"replicas": int64(s.settings.replicas)}
	if len(s.settings.images) == 1 {
		for name := range s.settings.images {
			spec["image"] = name
		}
	}
	return spec
}

// clusterWatcher prints the state of every cluster, and writes the kubeconfig files of the clusters.
type clusterWatcher struct {
	*sandbox
	started  time.Time
	secrets  corelisters.SecretLister
	clusters cache.GenericLister
	wake     chan struct{}
	shown    map[string]*row
	ready    bool // the ready event has been printed
}

// row is the last printed state of a cluster.
type row struct {
	settled    bool          // the cluster matches its spec
	once       bool          // the cluster has been settled before
	since      time.Time     // when the cluster last became unsettled
	took       time.Duration // time until the cluster was settled again
	kubeconfig string        // path of the kubeconfig file; empty until the file exists
}

func (r *row) observe(settled bool, now time.Time) {
	switch {
	case settled && !r.settled:
		r.took, r.once = now.Sub(r.since), true
	case !settled && r.settled:
		r.since = now
	}
	r.settled = settled
}

func (f *clusterWatcher) OnAdd(any, bool)   { f.notify() }
func (f *clusterWatcher) OnUpdate(any, any) { f.notify() }
func (f *clusterWatcher) OnDelete(any)      { f.notify() }

func (f *clusterWatcher) notify() {
	select {
	case f.wake <- struct{}{}:
	default: // a notification is pending
	}
}

func (f *clusterWatcher) run(ctx context.Context) error {
	addresses := f.table.Subscribe()
	f.notify()
	for {
		select {
		case <-f.wake:
		case <-addresses:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := f.step(); err != nil {
			return err
		}
	}
}

func (f *clusterWatcher) step() error {
	objects, err := f.clusters.List(labels.Everything())
	if err != nil {
		return err
	}
	present := map[string]bool{}
	for _, object := range objects {
		cluster := &v1alpha1.ApiServerCluster{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
			object.(*unstructured.Unstructured).Object, cluster,
		); err != nil {
			return err
		}
		name := displayName(cluster)
		present[name] = true
		if f.shown[name] == nil {
			f.shown[name] = &row{since: f.started}
			if f.ready {
				f.shown[name].since = time.Now()
			}
		}
		if err := f.show(name, cluster, f.shown[name]); err != nil {
			return err
		}
	}
	for name := range f.shown {
		if !present[name] {
			delete(f.shown, name)
			f.display.Forget(name)
			if err := os.Remove(f.home.file(name + ".kubeconfig")); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
	}
	f.announce()
	return nil
}

func (f *clusterWatcher) show(name string, cluster *v1alpha1.ApiServerCluster, row *row) error {
	if err := f.writeKubeconfig(name, cluster, row); err != nil {
		return err
	}
	row.observe(settled(cluster) && row.kubeconfig != "" && f.reachable(cluster), time.Now())
	event := progress.Event{
		Event: "cluster", Name: name, State: summary(cluster), Available: row.settled, Ready: cluster.Status.ReadyReplicas,
		Replicas: wanted(cluster),
	}
	if row.settled {
		event.State += fmt.Sprintf(" (%.1fs)", row.took.Seconds())
		event.Seconds = row.took.Round(100 * time.Millisecond).Seconds()
	}
	if row.once {
		event.Kubeconfig = row.kubeconfig
	}
	f.display.Show(event)
	return nil
}

// reachable reports whether the Service routes to all replicas. After a start of the sandbox, the cluster has the
// status of the previous run until the operator has reconciled the cluster.
func (f *clusterWatcher) reachable(cluster *v1alpha1.ApiServerCluster) bool {
	entry, _ := f.table.Get(cluster.Namespace, cluster.Name)
	ready := int32(0)
	for _, endpoint := range entry.Endpoints {
		if endpoint.Ready {
			ready++
		}
	}
	return ready == wanted(cluster)
}

// writeKubeconfig writes the kubeconfig file of a cluster, once the Secret exists and the Service has an address.
func (f *clusterWatcher) writeKubeconfig(name string, cluster *v1alpha1.ApiServerCluster, row *row) error {
	secret, err := f.secrets.Secrets(cluster.Namespace).Get(cluster.Name + "-admin-kubeconfig")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	address, ok := f.serviceAddress(cluster)
	if !ok || len(secret.Data["kubeconfig"]) == 0 {
		return nil
	}
	content, err := localKubeconfig(secret.Data["kubeconfig"], name, address)
	if err != nil {
		return err
	}
	if err := replaceFile(f.home.file(name+".kubeconfig"), content); err != nil {
		return err
	}
	row.kubeconfig = f.home.show(name + ".kubeconfig")
	return nil
}

// serviceAddress returns the address on which the proxy listens for the cluster's Service.
func (f *clusterWatcher) serviceAddress(cluster *v1alpha1.ApiServerCluster) (netip.AddrPort, bool) {
	entry, ok := f.table.Get(cluster.Namespace, cluster.Name)
	if !ok || len(entry.Service.Spec.Ports) == 0 {
		return netip.AddrPort{}, false
	}
	address, ok := entry.ClusterIP()
	if !ok {
		return netip.AddrPort{}, false
	}
	return f.proxy.Address(netip.AddrPortFrom(address, uint16(entry.Service.Spec.Ports[0].Port)))
}

// announce prints the ready event once demo is settled, or immediately with --empty.
func (f *clusterWatcher) announce() {
	row := f.shown[demo.Name]
	if f.ready || !f.settings.empty && (row == nil || !row.settled) {
		return
	}
	f.ready = true
	event := progress.Event{
		Event: "ready", Kubeconfig: f.home.show("management.kubeconfig"), Clusters: map[string]string{},
	}
	if f.home.fresh {
		event.Message = f.home.tryNext(f.settings.empty)
	}
	for name, row := range f.shown {
		if row.kubeconfig != "" {
			event.Clusters[name] = row.kubeconfig
		}
	}
	f.display.Show(event)
}

// displayName returns the name of a cluster in events and file names: with its namespace, unless that is the default
// one. The name management belongs to the management API server.
func displayName(cluster *v1alpha1.ApiServerCluster) string {
	return fileName(cluster.Namespace, cluster.Name)
}

func fileName(namespace, name string) string {
	if namespace == corev1.NamespaceDefault && name != "management" {
		return name
	}
	return namespace + "-" + name
}
