package serving

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Flagz serves /flagz, the flags of this process. The caller must not pass flags that contain secrets.
func Flagz(flags map[string]string) http.Handler { return pageHandler{flagz(flags)} }

type flagz map[string]string

func (flagz) path() string { return "/flagz" }
func (flagz) kind() string { return "Flagz" }

func (f flagz) writeText(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		_, _ = fmt.Fprintf(w, "%s: %s\n", name, f[name])
	}
}

func (f flagz) object(header pageHeader) runtime.Object {
	return &flagzObject{pageHeader: header, Flags: f}
}

// flagzObject is the page as an object of the group config.k8s.io.
type flagzObject struct {
	pageHeader `json:",inline"`
	Flags      map[string]string `json:"flags,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (o *flagzObject) DeepCopyObject() runtime.Object {
	copied := *o
	copied.Flags = maps.Clone(o.Flags)
	return &copied
}
