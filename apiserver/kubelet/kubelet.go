// Package kubelet connects clients with what runs on nodes: it gives the endpoints that a kubelet, a pod or what stands
// behind a service answers their meaning. Addresses are found by upstream's logic, connections made here.
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
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/kubelet/client"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options say how kubelets are reached.
type Options struct {
	// AddressTypes are the kinds of a node's addresses, preferred first.
	AddressTypes []string
	// CertFile and KeyFile are what this server identifies itself to kubelets with.
	CertFile, KeyFile string
	// CAFile is who signs kubelets' certificates; empty: they are not verified.
	CAFile string
	// Port of kubelets that do not report theirs; 0: 10250.
	Port uint
	// BytesPerSecond bounds each connection; 0: no limit.
	BytesPerSecond int64

	Authorizer authorizer.Authorizer
	Registerer prometheus.Registerer
}

// Kubelets hands requests on to nodes, pods and services.
type Kubelets struct {
	objects    resource.Client
	authorizer authorizer.Authorizer
	nodes      client.ConnectionInfoGetter
	// pods is the transport to pods, services and other ports of nodes, whose names no certificate vouches for.
	pods           http.RoundTripper
	bytesPerSecond int64
	metrics        *metrics
}

// New returns the adapter to the nodes among objects.
func New(objects resource.Client, options Options) (*Kubelets, error) {
	config := client.KubeletClientConfig{
		Port: options.Port, PreferredAddressTypes: options.AddressTypes,
		TLSClientConfig: client.KubeletTLSConfig{CertFile: options.CertFile, KeyFile: options.KeyFile, CAFile: options.CAFile},
	}
	if config.Port == 0 {
		config.Port = ports.KubeletPort
	}
	k := &Kubelets{objects: objects, authorizer: options.Authorizer, bytesPerSecond: options.BytesPerSecond, metrics: newMetrics(options.Registerer)}
	var err error
	if k.nodes, err = client.NewNodeConnectionInfoGetter(client.NodeGetterFunc(k.node), config); err != nil {
		return nil, fmt.Errorf("the client of kubelets: %w", err)
	}
	k.pods = utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
	return k, nil
}

// Names of what is looked up.
var (
	nodes     = schema.GroupResource{Resource: "nodes"}
	pods      = schema.GroupResource{Resource: "pods"}
	services  = schema.GroupResource{Resource: "services"}
	endpoints = schema.GroupResource{Resource: "endpoints"}
)

// node returns a node as upstream's client of kubelets wants it.
func (k *Kubelets) node(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	found, err := k.in(nodes, "").Get(ctx, name, nil)
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

// collection is one resource in one namespace, as upstream's logic reads it.
type collection struct {
	objects   resource.Client
	resource  schema.GroupResource
	namespace string
}

func (k *Kubelets) in(resource schema.GroupResource, namespace string) collection {
	return collection{k.objects, resource, namespace}
}

// Get reads an object as it is now. What is not found is called by the name of what was asked for, as kube-apiserver
// does it: "pods" also where the pod's node is missing.
func (c collection) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if complaints := path.IsValidPathSegmentName(name); len(complaints) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name, strings.Join(complaints, ";")))
	}
	found, err := c.objects.Get(ctx,
		resource.Key{GroupResource: c.resource, Namespace: c.namespace, Name: name}, resource.ReadOptions{})
	if record := request.From(ctx); record != nil && apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: record.Info.APIGroup, Resource: record.Info.Resource}, name)
	}
	return found, err
}

// optionsOf returns a function that reads options of type T from a query.
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

// wrongOptions is the error of a call with options of another endpoint.
func wrongOptions(options runtime.Object) error {
	return fmt.Errorf("invalid options object: %T", options)
}

// throttled returns a proxy to location, no faster than the server allows.
func (k *Kubelets) throttled(location *url.URL, transport http.RoundTripper, rewrite, upgradeRequired bool) *proxy.UpgradeAwareHandler {
	handler := proxy.NewUpgradeAwareHandler(location, transport, rewrite, upgradeRequired, responder{})
	handler.MaxBytesPerSec = k.bytesPerSecond
	return handler
}

// responder answers when the other side cannot be reached.
type responder struct{}

func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	request.WriteError(w, r, err)
}
