// Package node implements the node of a sandbox. It schedules the Pods of the management cluster to itself and runs
// them as processes of this binary. It also implements Services and PersistentVolumeClaims, in place of kube-proxy and
// the controllers.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"quorate.dev/sandbox/addresses"
	"quorate.dev/sandbox/endpoints"
	"quorate.dev/sandbox/probe"
	"quorate.dev/sandbox/process"
	"quorate.dev/sandbox/source"
	"quorate.dev/sandbox/volumes"
)

// Options configure an Agent.
type Options struct {
	Client     kubernetes.Interface // must not have a rate limit
	Name       string               // name of the Node
	Directory  string               // absolute path; contains the logs, the folders of Pods and the volumes
	Network    addresses.Network
	Executable string
	// Images has the executables of containers by image. Containers of other images run Executable.
	Images      map[string]string
	Environment []string         // name=value pairs that every process has
	Table       *endpoints.Table // the Agent updates it
	Spawner     *process.Spawner
	Kubelet     Kubelet
	Clock       clock.Clock
	Logger      logr.Logger
}

// Agent is the kubelet of the node, with the controllers that the sandbox needs.
type Agent struct {
	options  Options
	log      logr.Logger
	factory  informers.SharedInformerFactory
	lister   listers
	pool     *addresses.Pool
	checker  *probe.Checker
	recorder record.EventRecorder
	port     int // port of the kubelet API

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
}

type listers struct {
	pods     corelisters.PodLister
	services corelisters.ServiceLister
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	objects  source.Objects
}

// New returns an Agent, which does nothing until Run.
func New(options Options) *Agent {
	factory := informers.NewSharedInformerFactory(options.Client, 0)
	core := factory.Core().V1()
	return &Agent{
		options: options, log: options.Logger, factory: factory,
		lister: listers{
			pods: core.Pods().Lister(), services: core.Services().Lister(),
			claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
			objects: source.Objects{Secrets: core.Secrets().Lister(), ConfigMaps: core.ConfigMaps().Lister()},
		},
		pool:    addresses.NewPool(options.Network.Pods()),
		checker: probe.NewChecker(),
		workers: map[types.UID]*worker{},
	}
}

// Run runs the node's Pods until ctx is done, and then stops all processes gracefully. The Pods stay in the API, so
// that the next Agent runs them again.
func (a *Agent) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.options.Client.CoreV1().Events("")})
	a.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "sandbox", Host: a.options.Name})

	listener, err := a.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	a.port = listener.Addr().(*net.TCPAddr).Port
	if err := a.register(ctx); err != nil {
		return fmt.Errorf("register the node: %w", err)
	}
	if err := a.reportLost(ctx); err != nil {
		return fmt.Errorf("report terminated Pods: %w", err)
	}
	controllers := a.controllers()
	if err := a.watch(controllers); err != nil {
		return err
	}
	a.factory.StartWithContext(ctx)
	for kind, synced := range a.factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return errors.Join(ctx.Err(), fmt.Errorf("the informer of %s did not sync", kind))
		}
	}
	if err := a.resume(); err != nil {
		return err
	}
	for _, controller := range controllers {
		a.running.Go(func() { controller.run(ctx, a.log) })
	}
	a.running.Go(func() { a.serve(ctx, listener) })
	<-ctx.Done()
	a.running.Wait()
	a.factory.Shutdown()
	return nil
}

// serve serves the kubelet API until ctx is done. The Pods run even if that fails.
func (a *Agent) serve(ctx context.Context, listener net.Listener) {
	if err := a.serveKubelet(ctx, listener); err != nil && ctx.Err() == nil {
		a.log.Error(err, "Failed to serve the kubelet API; logs are unavailable")
	}
}

// reportLost reports that the processes of a previous Agent have terminated, before controllers act on the status that
// it reported last.
func (a *Agent) reportLost(ctx context.Context) error {
	selector := fields.OneTermEqualSelector("spec.nodeName", a.options.Name).String()
	list, err := a.options.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return err
	}
	var failures []error
	for i := range list.Items {
		if pod := &list.Items[i]; !terminal(pod.Status.Phase) && pod.Status.PodIP != "" {
			failures = append(failures, newWorker(a, pod).report(ctx, pod, false))
		}
	}
	return errors.Join(failures...)
}

// resume reserves the addresses that Pods had under a previous Agent, and deletes the folders of Pods that do not exist
// anymore.
func (a *Agent) resume() error {
	pods, err := a.ownPods()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, pod := range pods {
		known[string(pod.UID)] = true
		if address, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			a.pool.Reserve(string(pod.UID), address)
		}
	}
	folders, err := os.ReadDir(a.path("pods"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, folder := range folders {
		if !known[folder.Name()] {
			if err := os.RemoveAll(a.path("pods", folder.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Agent) path(elements ...string) string {
	return filepath.Join(append([]string{a.options.Directory}, elements...)...)
}

// volumeSource returns the API objects that volumes of Pods refer to.
func (a *Agent) volumeSource(tokens volumes.Tokens) volumes.Source {
	return volumes.Source{Objects: a.lister.objects, Claims: a.lister.claims, Volumes: a.lister.volumes, Tokens: tokens}
}

// controller runs a step whenever an object that the step reads has changed, and again after an error. A step reads the
// whole state of the sandbox, which is small.
type controller struct {
	name string
	wake chan struct{}
	step func(context.Context) error
}

// retryDelay is the delay before a step runs again after an error.
const retryDelay = 500 * time.Millisecond

func newController(name string, step func(context.Context) error) *controller {
	return &controller{name: name, wake: make(chan struct{}, 1), step: step}
}

func (c *controller) notify() {
	select {
	case c.wake <- struct{}{}:
	default: // a notification is pending
	}
}

func (c *controller) run(ctx context.Context, log logr.Logger) {
	c.notify()
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		if err := c.step(ctx); err != nil && ctx.Err() == nil {
			log.Info("Retrying after an error", "controller", c.name, "err", err.Error())
			time.AfterFunc(retryDelay, c.notify)
		}
	}
}

func (a *Agent) controllers() map[string]*controller {
	return map[string]*controller{
		"schedule":  newController("schedule", a.schedule),
		"dispatch":  newController("dispatch", a.dispatch),
		"claims":    newController("claims", a.provision),
		"endpoints": newController("endpoints", a.updateTable),
		"slices":    newController("slices", a.publishSlices),
		"balancers": newController("balancers", a.publishBalancers),
	}
}

// watch notifies each controller of changes of the objects that it reads.
func (a *Agent) watch(controllers map[string]*controller) error {
	core := a.factory.Core().V1()
	watches := []struct {
		informer    cache.SharedIndexInformer
		controllers []string
	}{
		{core.Pods().Informer(), []string{"schedule", "dispatch", "claims", "endpoints", "slices"}},
		{core.Services().Informer(), []string{"endpoints", "slices", "balancers"}},
		{core.PersistentVolumeClaims().Informer(), []string{"schedule", "claims", "dispatch"}},
		{core.PersistentVolumes().Informer(), []string{"claims", "dispatch"}},
		{core.Secrets().Informer(), []string{"dispatch"}},
		{core.ConfigMaps().Informer(), []string{"dispatch"}},
		{a.factory.Discovery().V1().EndpointSlices().Informer(), []string{"slices"}},
	}
	for _, w := range watches {
		var notified []*controller
		for _, name := range w.controllers {
			notified = append(notified, controllers[name])
		}
		if _, err := w.informer.AddEventHandler(notifyHandler(notified)); err != nil {
			return err
		}
	}
	return nil
}

// notifyHandler notifies controllers of every event of an informer.
type notifyHandler []*controller

func (h notifyHandler) OnAdd(any, bool)   { h.notify() }
func (h notifyHandler) OnUpdate(any, any) { h.notify() }
func (h notifyHandler) OnDelete(any)      { h.notify() }

func (h notifyHandler) notify() {
	for _, controller := range h {
		controller.notify()
	}
}
