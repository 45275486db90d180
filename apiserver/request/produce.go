package request

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Produce returns the error NotAcceptable if the Accept header matches no media type of a route. Like kube-apiserver's
// routes, it ignores weights and parameters in the header, and does not support ranges such as text/*.
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

// NotAcceptable returns the error of kube-apiserver's routes for an Accept header that matches none of the given media
// types.
func NotAcceptable(mediaTypes ...string) *apierrors.StatusError {
	err := Generic(http.StatusNotAcceptable)
	err.ErrStatus.Message = "406: Not Acceptable\n\nAvailable representations: " + strings.Join(mediaTypes, ", ")
	return err
}
