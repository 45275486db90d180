package request

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Produce returns an error if the client accepts none of the types that a route produces. Like kube-apiserver's routes
// it ignores weights, parameters and ranges such as text/* in the Accept header.
func Produce(r *http.Request, mediaTypes ...string) error {
	header := r.Header.Get("Accept")
	if header == "" || accepts(header, mediaTypes) {
		return nil
	}
	return NotAcceptable(mediaTypes...)
}

func accepts(header string, mediaTypes []string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		mediaType, _, _ := strings.Cut(clause, ";")
		if mediaType = strings.TrimSpace(mediaType); mediaType == "*/*" || slices.Contains(mediaTypes, mediaType) {
			return true
		}
	}
	return false
}

// NotAcceptable is the error for a client that accepts none of the types that a route produces.
func NotAcceptable(mediaTypes ...string) *apierrors.StatusError {
	err := Generic(http.StatusNotAcceptable)
	err.ErrStatus.Message = "406: Not Acceptable\n\nAvailable representations: " + strings.Join(mediaTypes, ", ")
	return err
}
