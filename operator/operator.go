// Package operator composes the controller manager for ApiServerClusters: "quorate operator".
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/kubeconfig"
	"quorate.dev/operator/limited"
	"quorate.dev/operator/reconcile"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/reconcile/configuration"
	clustermetrics "quorate.dev/operator/reconcile/metrics"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/operator/reconcile/watches"
	"quorate.dev/writelimit"
)

// Environment variables that flags default to.
const (
	imageVariable     = "QUORATE_IMAGE"
	namespaceVariable = "POD_NAMESPACE"
)

// requestsPerSecond limits the requests to the hosting cluster. Bursts may be twice as high.
const requestsPerSecond = 100

// options are the command-line flags.
type options struct {
	kubeconfig              string
	namespaces              []string
	image                   string
	leaderElect             bool
	leaderElectionNamespace string
	podNamespace            string
	metricsAddress          string
	probeAddress            string
	profilingAddress        string
	logFormat               string
	verbosity               int
	shutdownTimeout         time.Duration
	hostURL                 string
	owner                   []metav1.OwnerReference // owner references of the objects that the operator creates for itself
}

// leaseName is the name of the leader lease.
const leaseName = "operator.quorate.dev"

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the kubeconfig of the hosting cluster. "+
		"Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod.")
	f.StringSliceVar(&o.namespaces, "namespaces", nil, "Comma-separated namespaces to watch. Default: all.")
	f.StringVar(&o.image, "image", os.Getenv(imageVariable), "Default of spec.image. Default: $"+imageVariable+".")
	f.BoolVar(&o.leaderElect, "leader-elect", true,
		"Reconcile only while holding the leader lease. Required for more than one replica.")
	f.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", cmp.Or(os.Getenv(namespaceVariable), "default"),
		"Namespace of the leader lease. Default: $"+namespaceVariable+", or default.")
	f.StringVar(&o.podNamespace, "pod-namespace", "", "Namespace of the operator's pods: NetworkPolicies allow "+
		"connections from it, and it contains the Secret with the metrics certificate. "+
		"Default: $"+namespaceVariable+", or none with a kubeconfig.")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "Address of the HTTPS server for /metrics. "+
		"Clients need a bearer token that is authorized to get /metrics. 0 disables it.")
	f.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081",
		"Address of the HTTP server for /healthz and /readyz. 0 disables it.")
	f.StringVar(&o.profilingAddress, "profiling-bind-address", "0",
		"Address of the HTTP server for /debug/pprof, without authentication: use a loopback address. 0 disables it.")
	f.StringVar(&o.hostURL, "host-url", "", "URL at which API servers in mode Extension reach the hosting cluster. "+
		"Default: the one in the kubeconfig, or of the service account of the pod.")
	f.StringVar(&o.logFormat, "logging-format", "text", "Log format: text or json.")
	f.IntVarP(&o.verbosity, "v", "v", 0, "Log verbosity.")
	f.DurationVar(&o.shutdownTimeout, "graceful-shutdown-timeout", 15*time.Second,
		"Time for running reconciliations to finish at shutdown.")
}

// Run runs the operator until ctx is done.
func Run(ctx context.Context, args []string) error {
	command := Command()
	command.SetArgs(args)
	return command.ExecuteContext(ctx)
}

// Command returns the command `quorate operator`.
func Command() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use: "operator", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "quorate operator"},
		Short: "Run the controller manager for ApiServerClusters.",
		Args:  cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			o.complete()
			return o.run(command.Context())
		},
	}
	o.flags(command.Flags())
	return command
}

// complete sets defaults. With a kubeconfig, the hosting cluster may differ from the cluster of the operator's pod.
func (o *options) complete() {
	if o.kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		o.podNamespace = cmp.Or(o.podNamespace, os.Getenv(namespaceVariable))
	}
}

func (o *options) run(ctx context.Context) error {
	log, err := newLogger(os.Stderr, o.logFormat, o.verbosity)
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	connection, err := o.connection()
	if err != nil {
		return err
	}
	hosting, _, err := rest.DefaultServerUrlFor(connection)
	if err != nil {
		return fmt.Errorf("address of the API server: %w", err)
	}
	requests := newRequestMetric(hosting.Host)
	writes := writelimit.NewCounter(limited.Help)
	if err := registerMetrics(metrics.Registry, requests, writes); err != nil {
		return err
	}
	limiter := writelimit.New(limited.Limit, clock.RealClock{}, writes)
	clientmetrics.RequestResult = requests
	direct, err := client.New(connection, client.Options{Scheme: Scheme()})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	if o.owner, err = serviceAccount(tokenFile); err != nil {
		return err
	}
	manager, err := o.manager(connection, limited.New(direct, limiter, "serving-certificate"), limiter, log)
	if err != nil {
		return err
	}
	if err := o.createLease(ctx, direct); err != nil {
		log.Error(err, "Failed to create the leader lease with an owner; leader election creates it without one")
	}
	log.Info("Starting the operator", "image", o.image, "namespaces", o.namespaces)
	if err := manager.Start(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run the operator: %w", err)
	}
	return nil
}

func (o *options) manager(
	connection *rest.Config, direct client.Client, limiter *writelimit.Limiter, log logr.Logger,
) (ctrl.Manager, error) {
	certificate := o.servingCertificate(direct, log)
	manager, err := ctrl.NewManager(connection, ctrl.Options{
		Scheme: Scheme(), Logger: log, Cache: o.cache(),
		Client:                  client.Options{Cache: &client.CacheOptions{DisableFor: uncached()}},
		Metrics:                 o.metrics(certificate),
		HealthProbeBindAddress:  o.probeAddress,
		PprofBindAddress:        o.profilingAddress,
		LeaderElection:          o.leaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: o.leaderElectionNamespace,
		// The process exits with the manager, so it can release the lease immediately.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &o.shutdownTimeout,
		Controller:                    config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	sources, err := o.sources(connection, manager)
	if err != nil {
		return nil, err
	}
	reconciler := &reconcile.Reconciler{
		Sources: sources,
		Client:  limited.New(manager.GetClient(), limiter, "apiservercluster"),
		Reader:  manager.GetAPIReader(), Clock: clock.RealClock{}, Etcd: etcd.NewPool(),
		Recorder: manager.GetEventRecorder("quorate-operator"), Image: o.image,
		OperatorNamespace: o.podNamespace, Metrics: clustermetrics.New(), Checks: configuration.NewChecks(),
		Retries: outcome.NewRetries(),
		Connect: limited.Connect(apiservices.Connect, limiter, "apiservercluster"), Discover: apiservices.Discover,
		Host: o.host(connection),
	}
	err = registerMetrics(metrics.Registry, reconciler.Metrics, clustermetrics.StateCollector{Reader: manager.GetClient()},
		backups.Collector{Reader: manager.GetClient(), Clock: clock.RealClock{}})
	if err != nil {
		return nil, err
	}
	kubeconfigs := &kubeconfig.Reconciler{
		Client: limited.New(manager.GetClient(), limiter, "apiserverkubeconfig"),
		Reader: manager.GetAPIReader(), Clock: clock.RealClock{}, Recorder: reconciler.Recorder,
		Retries: kubeconfig.NewRetries(),
	}
	backupReconciler := &backups.Reconciler{
		Client: limited.New(manager.GetClient(), limiter, "apiserverbackup"),
		Reader: manager.GetAPIReader(), Clock: clock.RealClock{}, Image: o.image, Retries: backups.NewRetries(),
		Recorder: manager.GetEventRecorder("quorate-operator"),
	}
	schedules := &backups.ScheduleReconciler{
		Client: limited.New(manager.GetClient(), limiter, "apiserverbackupschedule"),
		Reader: manager.GetAPIReader(), Clock: clock.RealClock{},
		Recorder: manager.GetEventRecorder("quorate-operator"),
	}
	if o.metricsAddress != "0" {
		if err := manager.Add(certificate); err != nil {
			return nil, err
		}
	}
	return manager, errors.Join(
		reconciler.SetupWithManager(manager),
		backupReconciler.SetupWithManager(manager),
		schedules.SetupWithManager(manager),
		kubeconfigs.SetupWithManager(manager),
		manager.AddHealthzCheck("ping", healthz.Ping),
		manager.AddReadyzCheck("ping", healthz.Ping),
	)
}

// uncached returns the kinds that are always read from the API server. The cache has only their metadata, for the
// watches.
func uncached() []client.Object {
	return []client.Object{&corev1.Pod{}, &corev1.PersistentVolumeClaim{}}
}

// cache restricts the cache to objects that the operator owns.
func (o *options) cache() cache.Options {
	owned := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{desired.ManagedByLabel: desired.ManagedBy})}
	options := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{
			&corev1.Service{}: owned, &corev1.Secret{}: owned,
			&appsv1.Deployment{}: owned, &policyv1.PodDisruptionBudget{}: owned, &networkingv1.NetworkPolicy{}: owned,
		},
	}
	owned.Transform = metadataOnly
	for _, object := range uncached() {
		options.ByObject[object] = owned
	}
	for _, namespace := range o.namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	return options
}

// metadataOnly removes the parts of a pod or claim that its watch does not need.
func metadataOnly(object any) (any, error) {
	switch typed := object.(type) {
	case *corev1.Pod:
		typed.ManagedFields, typed.Annotations, typed.Spec, typed.Status = nil, nil, corev1.PodSpec{}, corev1.PodStatus{}
	case *corev1.PersistentVolumeClaim:
		typed.ManagedFields, typed.Annotations = nil, nil
		typed.Spec, typed.Status = corev1.PersistentVolumeClaimSpec{}, corev1.PersistentVolumeClaimStatus{}
	}
	return object, nil
}

// sources returns a cache of the metadata of all ConfigMaps and Secrets. The manager starts it.
func (o *options) sources(connection *rest.Config, manager ctrl.Manager) (cache.Cache, error) {
	options := o.cache()
	sources, err := cache.New(connection, cache.Options{
		Scheme: manager.GetScheme(), HTTPClient: manager.GetHTTPClient(), Mapper: manager.GetRESTMapper(),
		DefaultNamespaces: options.DefaultNamespaces, DefaultTransform: watches.SourceMetadata,
	})
	if err != nil {
		return nil, fmt.Errorf("create the cache of metadata: %w", err)
	}
	return sources, manager.Add(sources)
}

func (o *options) connection() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	connection, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig of the hosting cluster: %w", err)
	}
	connection.QPS, connection.Burst = requestsPerSecond, 2*requestsPerSecond
	connection.UserAgent = "quorate-operator"
	return connection, nil
}

// Scheme returns the scheme with the types of all objects that the operator handles.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	utilruntime.Must(apiregistrationv1.AddToScheme(s))
	return s
}

// host returns the connection parameters with which pods reach the hosting cluster.
func (o *options) host(connection *rest.Config) apiservices.Host {
	return apiservices.Host{
		Server: cmp.Or(o.hostURL, connection.Host), CAFile: connection.CAFile, CAData: connection.CAData,
	}
}

func newLogger(out io.Writer, format string, verbosity int) (logr.Logger, error) {
	handlerOptions := &slog.HandlerOptions{Level: slog.Level(-verbosity)}
	switch format {
	case "text":
		return logr.FromSlogHandler(slog.NewTextHandler(out, handlerOptions)), nil
	case "json":
		return logr.FromSlogHandler(slog.NewJSONHandler(out, handlerOptions)), nil
	}
	return logr.Logger{}, fmt.Errorf("--logging-format %q must be text or json", format)
}
