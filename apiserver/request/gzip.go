package request

import (
	"net/http"
	"strings"
)

// CompressAbove is the size in bytes above which answers are compressed for clients that take gzip.
const CompressAbove = 128 << 10

// Compresses tells whether an answer of a size is to be compressed. As kube-apiserver does, it knows no weights: a client
// that gives gzip one does not get it.
func Compresses(r *http.Request, size int) bool {
	if size <= CompressAbove {
		return false
	}
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}
