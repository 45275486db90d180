package request

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Produce is the error for a client that accepts nothing of what a route produces. It looks at the Accept header as
// kube-apiserver's routes do, which know neither weights nor parameters nor half a type.
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
