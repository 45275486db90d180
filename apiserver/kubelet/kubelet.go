// Package kubelet serves the connect subresources of nodes, pods and Services: log, exec, attach, portforward and
// proxy. Upstream's code determines the address of the backend; this package connects to it.
package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/egressselector"
	endpointslices "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/kubelet/client"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options configure the connections to kubelets.
type Options struct {
	// AddressTypes are the types of node addresses, the preferred type first.
	AddressTypes []string
	// CertFile and KeyFile are the client certificate for connections to kubelets.
	CertFile, KeyFile string
	// CAFile has the certificate authorities of the kubelets' serving certificates. If it is empty, certificates are
	// not verified.
	CAFile string
	// Port is the port of kubelets that report none; 0 means 10250.
	Port uint
	// BytesPerSecond limits the bandwidth of each connection; 0 means no limit.
	BytesPerSecond int64
	// Dial connects to nodes, pods and Services; nil connects directly.
	Dial utilnet.DialFunc

	// Slices finds the EndpointSlices of Services, and Family is the preferred family of their addresses.
	Slices endpointslices.EndpointSliceGetter
	Family corev1.IPFamily

	Authorizer authorizer.UnconditionalAuthorizer
	Registerer prometheus.Registerer
}

// Kubelets connects clients to nodes, pods and Services.
type Kubelets struct {
	objects    resource.Client
	authorizer authorizer.UnconditionalAuthorizer
	nodes      client.ConnectionInfoGetter
	// pods is the transport to pods, Services and other ports of nodes. Like kube-apiserver's, it does not verify
	// certificates, because the names in them are not known.
	pods           http.RoundTripper
	slices         endpointslices.EndpointSliceGetter
	family         corev1.IPFamily
	bytesPerSecond int64
	metrics        *metrics
}

// New returns Kubelets that read nodes, pods and Services from objects.
func New(objects resource.Client, options Options) (*Kubelets, error) {
	config := client.KubeletClientConfig{
		Port: options.Port, PreferredAddressTypes: options.AddressTypes,
		TLSClientConfig: client.KubeletTLSConfig{
			CertFile: options.CertFile, KeyFile: options.KeyFile, CAFile: options.CAFile,
		},
	}
	if options.Dial != nil {
		config.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return options.Dial, nil }
	}
	if config.Port == 0 {
		config.Port = ports.KubeletPort
	}
	k := &Kubelets{
		objects: objects, authorizer: options.Authorizer, bytesPerSecond: options.BytesPerSecond,
		slices: options.Slices, family: options.Family, metrics: newMetrics(options.Registerer),
	}
	var err error
	if k.nodes, err = client.NewNodeConnectionInfoGetter(client.NodeGetterFunc(k.node), config); err != nil {
		return nil, fmt.Errorf("create the kubelet client: %w", err)
	}
	k.pods = utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: options.Dial,
	})
	return k, nil
}

// These are the resources that determine the address of a backend.
var (
	nodes    = schema.GroupResource{Resource: "nodes"}
	pods     = schema.GroupResource{Resource: "pods"}
	services = schema.GroupResource{Resource: "services"}
)

// node reads a node. It implements the getter of upstream's kubelet client.
func (k *Kubelets) node(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	found, err := k.getter(nodes, "").Get(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	internal, ok := found.(*api.Node)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", found)
	}
	node := &corev1.Node{}
	if err := corev1conversion.Convert_core_Node_To_v1_Node(internal, node, nil); err != nil {
		return nil, fmt.Errorf("failed to convert to v1.Node: %w", err)
	}
	return node, nil
}

// collection implements upstream's ResourceGetter for one resource in one namespace.
type collection struct {
	objects   resource.Client
	resource  schema.GroupResource
	namespace string
}

func (k *Kubelets) getter(resource schema.GroupResource, namespace string) collection {
	return collection{k.objects, resource, namespace}
}

// Get reads an object without using the cache. As in kube-apiserver, a NotFound error has the resource of the request,
// which is "pods" also if the node of the pod is missing.
func (c collection) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if complaints := path.IsValidPathSegmentName(name); len(complaints) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name,
			strings.Join(complaints, ";")))
	}
	found, err := c.objects.Get(ctx,
		resource.Key{GroupResource: c.resource, Namespace: c.namespace, Name: name}, resource.ReadOptions{})
	if record := request.From(ctx); record != nil && apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(schema.GroupResource{
			Group: record.Info.APIGroup, Resource: record.Info.Resource,
		}, name)
	}
	return found, err
}

// optionsOf returns a function that decodes query parameters into options of the type T.
func optionsOf[T any, P interface {
	*T
	runtime.Object
}]() func(url.Values) (runtime.Object, error) {
	return func(query url.Values) (runtime.Object, error) {
		options := P(new(T))
		err := legacyscheme.ParameterCodec.DecodeParameters(query, corev1.SchemeGroupVersion, options)
		return options, err
	}
}

// wrongOptions returns the error for options of an unexpected type.
func wrongOptions(options runtime.Object) error {
	return fmt.Errorf("invalid options object: %T", options)
}

// throttled returns a proxy to location that is limited to BytesPerSecond.
func (k *Kubelets) throttled(
	location *url.URL, transport http.RoundTripper, rewrite, upgradeRequired bool,
) *proxy.UpgradeAwareHandler {
	handler := proxy.NewUpgradeAwareHandler(location, transport, rewrite, upgradeRequired, responder{})
	handler.MaxBytesPerSec = k.bytesPerSecond
	return handler
}

// responder responds with the errors of a proxy.
type responder struct{}

func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	request.WriteError(w, r, err)
}
