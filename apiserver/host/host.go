// Package host connects an extension API server to its host, which is the cluster that it serves API groups to. It
// provides the host's users, permissions, namespaces, webhooks and policies.
package host

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/apiserver/config"
)

// Options configure the connection to the host.
type Options struct {
	Config    config.Extension
	UserAgent string
}

// Cluster is the host of an extension API server.
type Cluster struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Informers read from Client. The caller must start them.
	Informers informers.SharedInformerFactory
	// Mapper maps the host's resources as they were at the last Reset.
	Mapper meta.ResettableRESTMapper

	authentication, authorization kubernetes.Interface
}

// These are the settings of the clients of upstream's extension servers.
const (
	qps   = 200
	burst = 400
	// requestTimeout bounds TokenReviews, SubjectAccessReviews and requests for the lookup.
	requestTimeout = 10 * time.Second
	retryDelay     = 500 * time.Millisecond
)

// retryBackoff returns the backoff for TokenReviews and SubjectAccessReviews.
func retryBackoff() *wait.Backoff {
	b := webhook.DefaultRetryBackoffWithInitialDelay(retryDelay)
	return &b
}

// Connect reads the kubeconfigs and creates the clients. It sends no request to the host.
func Connect(options Options) (*Cluster, error) {
	c := options.Config
	core, err := options.config("kubeconfig", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	authentication, err := options.client("authentication-kubeconfig", c.AuthenticationKubeconfig, core)
	if err != nil {
		return nil, err
	}
	reviewed := rest.CopyConfig(core)
	reviewed.RateLimiter = newFairLimiter()
	authorization, err := options.client("authorization-kubeconfig", c.AuthorizationKubeconfig, reviewed)
	if err != nil {
		return nil, err
	}
	client, err := typed(core)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of the host: %w", err)
	}
	untyped, err := dynamic.NewForConfig(core)
	if err != nil {
		return nil, fmt.Errorf("prepare the dynamic client of the host: %w", err)
	}
	return &Cluster{
		Client: client, Dynamic: untyped,
		Informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(dropManagedFields)),
		Mapper:    restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),

		authentication: authentication, authorization: authorization,
	}, nil
}

// client returns a client with the kubeconfig in file, or with core if file is empty.
func (o Options) client(flag, file string, core *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(core)
	if file != "" {
		var err error
		if c, err = o.config(flag, file); err != nil {
			return nil, err
		}
		c.RateLimiter = core.RateLimiter
	}
	c.Timeout = requestTimeout
	client, err := typed(c)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return client, nil
}

// config reads a kubeconfig. If file is empty, it returns the configuration of the pod's service account.
func (o Options) config(flag, file string) (c *rest.Config, err error) {
	if file != "" {
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
		c, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	} else {
		c, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: no usable configuration of the host: %w", flag, err)
	}
	c.QPS, c.Burst, c.UserAgent = qps, burst, o.UserAgent
	return c, nil
}

// typed returns a client that uses protobuf.
func typed(c *rest.Config) (kubernetes.Interface, error) {
	c = rest.CopyConfig(c)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(c)
}

// dropManagedFields removes managed fields, which no admission plugin reads, to save memory.
func dropManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
