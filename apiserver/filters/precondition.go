package filters

import (
	"net/http"

	"quorate.dev/apiserver/request"
)

// precondition rejects authorized requests that this server must not serve yet: writes of resources whose storage
// version has not been recorded. It is the counterpart of kube-apiserver's WithStorageVersionPrecondition.
type precondition struct {
	next   http.Handler
	permit func(*request.Record) error
}

func newPrecondition(next http.Handler, options Options) http.Handler {
	if options.Permit == nil {
		return next
	}
	return &precondition{next: next, permit: options.Permit}
}

func (f *precondition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f.permit(request.From(r.Context())); err != nil {
		request.WriteError(w, r, err)
		return
	}
	f.next.ServeHTTP(w, r)
}
