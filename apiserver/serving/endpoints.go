package serving

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/request"
)

// Version serves /version.
func Version(info version.Info) (http.Handler, error) {
	body, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return nil, err
	}
	return versionHandler(body), nil
}

type versionHandler []byte

func (h versionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := request.Produce(r, "application/json"); err != nil {
		request.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(h)
}

// Profiling serves /debug/pprof and the paths below it.
func Profiling() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
