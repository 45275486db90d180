package filters

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/request"
)

// authenticate sets the user of a request, or responds with 401 if authentication fails.
type authenticate struct {
	next          http.Handler
	authenticator authenticator.Request
	// proxy returns the configuration of the front proxy; both the function and its result may be nil.
	proxy   func() *authentication.FrontProxy
	metrics *Metrics
	auditor *audit.Auditor
	clock   clock.PassiveClock
}

func newAuthenticate(next http.Handler, options Options) http.Handler {
	return &authenticate{
		next: next, authenticator: options.Authenticator, proxy: options.FrontProxy, metrics: options.Metrics,
		auditor: options.Auditor, clock: options.Clock,
	}
}

// standardProxy has the usual headers of front proxies, which are removed whether or not a front proxy is configured.
var standardProxy = authentication.FrontProxy{
	UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
	GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
}

// clear removes the headers of front proxies, so that no handler sees them.
func (f *authenticate) clear(headers http.Header) {
	standardProxy.Clear(headers)
	if f.proxy == nil {
		return
	}
	if proxy := f.proxy(); proxy != nil {
		proxy.Clear(headers)
	}
}

func (f *authenticate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	started := f.clock.Now()
	answer, ok, err := f.authenticator.AuthenticateRequest(r)
	record.Latency.Authentication = f.clock.Since(started)
	f.metrics.authenticated(answer, ok, err, record.Latency.Authentication)
	f.metrics.filters.Load().authentication.Observe(record.Latency.Authentication.Seconds())
	if err != nil {
		record.Logger.V(2).Info("Unable to authenticate a request", "error", err.Error(), "remote", r.RemoteAddr)
	}
	if err != nil || !ok {
		closeIfHTTP2(w, r)
		if auditFailure(f.auditor, w, r, attemptedMethods(r)) {
			request.WriteError(w, r, apierrors.NewUnauthorized("Unauthorized"))
		}
		return
	}
	r.Header.Del("Authorization")
	f.clear(r.Header)
	record.User = answer.User
	if isAnonymous(answer.User) {
		closeIfHTTP2(w, r)
	} else {
		request.MarkAuthenticated(record.Context)
	}
	f.next.ServeHTTP(w, r)
}

// closeIfHTTP2 closes the HTTP/2 connection of an unauthenticated client after the request, as kube-apiserver does
// against rapid stream resets (CVE-2023-44487).
func closeIfHTTP2(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && utilfeature.DefaultFeatureGate.Enabled(features.UnauthenticatedHTTP2DOSMitigation) {
		w.Header().Set("Connection", "close")
	}
}

func isAnonymous(requestor user.Info) bool {
	return requestor.GetName() == user.Anonymous || slices.Contains(requestor.GetGroups(), user.AllUnauthenticated)
}
