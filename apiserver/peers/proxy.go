package peers

import (
	"bufio"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/streaming/pkg/httpstream"

	"quorate.dev/apiserver/request"
)

// proxiedHeader marks a request that another replica has forwarded. Such a request is not forwarded again.
const proxiedHeader = "x-kubernetes-peer-proxied"

// Handler forwards requests for resources that only peers serve, and passes all other requests to next. p may be nil.
func (p *Peers) Handler(next http.Handler) http.Handler {
	if p == nil {
		return next
	}
	return handler{p, next}
}

type handler struct {
	peers *Peers
	next  http.Handler
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	resource := schema.GroupVersionResource{
		Group: record.Info.APIGroup, Version: record.Info.APIVersion, Resource: record.Info.Resource,
	}
	if !record.Info.IsResourceRequest || record.Delegate != nil || r.Header.Get(proxiedHeader) == "true" ||
		h.peers.options.Serves(resource) {
		h.next.ServeHTTP(w, r)
		return
	}
	ids := h.peers.Current().serving(resource)
	if len(ids) == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	address, err := h.peers.locate(r.Context(), ids)
	if err != nil {
		h.peers.metrics.errors.WithLabelValues(errorEndpoint, resource.Group, resource.Version, resource.Resource).Inc()
		record.Logger.Error(err, "Failed to find the address of a peer", "resource", describe(resource))
		request.WriteError(w, r, apierrors.NewServiceUnavailable(
			"Error getting ip and port info of the remote server while proxying"))
		return
	}
	h.peers.forward(w, r, address, resource)
}

// locate returns the address of a peer, chosen at random from ids. It returns an error if no peer has an address.
func (p *Peers) locate(ctx context.Context, ids []string) (address string, err error) {
	for _, i := range rand.Perm(len(ids)) { //nolint:gosec // spreads requests; not a secret
		if address, err = p.options.Leases.address(ctx, ids[i]); err == nil {
			return address, nil
		}
	}
	return "", err
}

func (p *Peers) forward(w http.ResponseWriter, r *http.Request, address string, resource schema.GroupVersionResource) {
	record := request.From(r.Context())
	location := &url.URL{Scheme: "https", Host: address, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	outgoing, cancel := apiserverproxy.NewRequestForProxy(location, r)
	defer cancel()
	outgoing.Header.Set(proxiedHeader, "true")
	outgoing.Header.Set(auditinternal.HeaderAuditID, record.AuditID)
	user := record.User
	counted := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		p.metrics.rerouted.WithLabelValues(
			strconv.Itoa(counted.status), resource.Group, resource.Version, resource.Resource).Inc()
	}()
	upgrade := httpstream.IsUpgradeRequest(r)
	// Upgrade requests do not use the round tripper, which sets the headers of other requests.
	if upgrade {
		transport.SetAuthProxyHeaders(outgoing, user.GetName(), user.GetUID(), user.GetGroups(), user.GetExtra())
	} else if err := request.KeepBody(outgoing); err != nil {
		responder{}.Error(counted, outgoing, err)
		return
	}
	identified := transport.NewAuthProxyRoundTripper(
		user.GetName(), user.GetUID(), user.GetGroups(), user.GetExtra(), p.options.Transport)
	proxy.NewUpgradeAwareHandler(location, identified, true, upgrade, responder{}).ServeHTTP(counted, outgoing)
}

// statusRecorder records the status code of a response.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker, which upgrade requests need.
func (s *statusRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	s.status = http.StatusSwitchingProtocols
	return http.NewResponseController(s.ResponseWriter).Hijack()
}

// Unwrap implements the interface that http.ResponseController uses to find the wrapped writer.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// responder responds with the errors of a proxy.
type responder struct{}

// Error implements proxy.ErrorResponder.
func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	record := request.From(r.Context())
	// The timeout filter responds, or the client has disconnected.
	if record.Context.Err() != nil {
		return
	}
	record.Logger.Error(err, "Failed to pass a request on to a peer")
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
