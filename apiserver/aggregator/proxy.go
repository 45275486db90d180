package aggregator

import (
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/util/proxy"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/streaming/pkg/httpstream"

	"quorate.dev/apiserver/request"
)

// ServeHTTP forwards a request to the server. It mirrors kube-aggregator's proxyHandler.ServeHTTP, including the
// responses that the proxy generates itself. The request's context must have a request.Record.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if !b.Available {
		b.reject(w, r, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	connections, err := b.pool()
	if err != nil {
		b.reject(w, r, err.Error(), http.StatusInternalServerError)
		return
	}
	location, err := b.resolve()
	if err != nil {
		record.Logger.Error(err, "Failed to resolve the Service of an APIService", "name", b.Name)
		b.reject(w, r, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if !record.LongRunning {
		if !b.connections.inFlight.take() {
			w.Header().Set("Retry-After", "1")
			b.reject(w, r, "Too many requests, please try again later.", http.StatusTooManyRequests)
			return
		}
		defer b.connections.inFlight.free()
	}
	b.forward(w, r, record, &url.URL{
		Scheme: "https", Host: location.Host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode(),
	}, connections)
}

// forward sends the request to the location and copies the response. The pool is loaded once, so that one request uses
// one transport even if the certificate changes. An upgrade (exec, port-forward) gets the headers of the user before,
// because upstream's handler dials the server itself for it; tracing is not added, as upstream.
func (b *Backend) forward(
	w http.ResponseWriter, r *http.Request, record *request.Record, location *url.URL, connections *pool,
) {
	outgoing, cancel := apiserverproxy.NewRequestForProxy(location, r)
	defer cancel()
	outgoing.Header.Set(auditinternal.HeaderAuditID, record.AuditID)
	user, uid := record.User, ""
	if utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		uid = user.GetUID()
	}
	if httpstream.IsUpgradeRequest(r) {
		transport.SetAuthProxyHeaders(outgoing, user.GetName(), uid, user.GetGroups(), user.GetExtra())
		u := newUpgrade(r.Context(), w)
		defer u.end()
		proxy.NewUpgradeAwareHandler(location, u.transport(connections.transport), true, true,
			responder{}).ServeHTTP(u, outgoing)
		return
	}
	if err := request.KeepBody(outgoing); err != nil {
		responder{}.Error(w, outgoing, err)
		return
	}
	// The round tripper sets the headers of the user, because the proxy removes headers that the client's Connection
	// header names.
	identified := transport.NewAuthProxyRoundTripper(user.GetName(), uid, user.GetGroups(),
		user.GetExtra(), connections.inspected)
	handler := proxy.NewUpgradeAwareHandler(location, identified, true, false, responder{})
	handler.RejectForwardingRedirects = b.options.RejectRedirects
	handler.ServeHTTP(w, outgoing)
}

// reject responds to a request instead of the server.
func (b *Backend) reject(w http.ResponseWriter, r *http.Request, message string, code int) {
	http.Error(w, message, code)
	if b.options.Rejected != nil {
		b.options.Rejected(r, code)
	}
}

// responder responds when the proxy gets no response from the server.
type responder struct{}

func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	if record := request.From(r.Context()); record != nil && record.Context.Err() != nil {
		// The timeout filter responds, or the client is gone. As in kube-apiserver, the audit event has the code of
		// the proxy.
		record.AuditContext().SetEventResponseStatusCode(http.StatusServiceUnavailable)
		return
	}
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
