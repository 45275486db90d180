package filters

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/request"
)

// authenticate finds out who asks, or answers 401.
type authenticate struct {
	next          http.Handler
	authenticator authenticator.Request
	proxies       []*authentication.FrontProxy // whose headers are removed
	metrics       *Metrics
	clock         clock.PassiveClock
}

func newAuthenticate(next http.Handler, options Options) http.Handler {
	f := &authenticate{next: next, authenticator: options.Authenticator, metrics: options.Metrics, clock: options.Clock}
	f.proxies = append(f.proxies, &authentication.FrontProxy{
		UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
		GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	})
	if options.FrontProxy != nil {
		f.proxies = append(f.proxies, options.FrontProxy)
	}
	return f
}

func (f *authenticate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	started := f.clock.Now()
	answer, ok, err := f.authenticator.AuthenticateRequest(r)
	f.metrics.authenticated(answer, ok, err, f.clock.Since(started))
	if err != nil {
		record.Logger.V(2).Info("Unable to authenticate a request", "error", err.Error(), "remote", r.RemoteAddr)
	}
	if err != nil || !ok {
		closeIfHTTP2(w, r)
		request.WriteError(w, r, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	r.Header.Del("Authorization")
	for _, proxy := range f.proxies {
		proxy.Clear(r.Header)
	}
	record.User = answer.User
	if isAnonymous(answer.User) {
		closeIfHTTP2(w, r)
	}
	f.next.ServeHTTP(w, r)
}

// closeIfHTTP2 takes from clients we do not know what makes HTTP/2 easy to abuse (CVE-2023-44487): after one request
// their connection ends.
func closeIfHTTP2(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		w.Header().Set("Connection", "close")
	}
}

func isAnonymous(who user.Info) bool {
	return who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated)
}
