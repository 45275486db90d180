package filters

import (
	"net/http"

	"quorate.dev/apiserver/request"
)

// warnings makes the record's warnings part of the headers of the response.
type warnings struct{ next http.Handler }

func (f warnings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request.From(r.Context()).Warnings.To(w)
	f.next.ServeHTTP(w, r)
}
