package serving

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"quorate.dev/apiserver/request"
)

// LogFiles serves the files below directory on the paths below prefix; --enable-logs-handler serves /var/log at /logs.
func LogFiles(prefix, directory string) http.Handler { return logFiles{prefix, directory} }

type logFiles struct{ prefix, directory string }

func (l logFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		request.WriteError(w, r, request.Generic(http.StatusMethodNotAllowed))
		return
	}
	// kube-apiserver's route for logs declares no media type.
	if err := request.Produce(r); err != nil {
		request.WriteError(w, r, err)
		return
	}
	relative := strings.TrimPrefix(r.URL.Path, l.prefix)
	// http.ServeFile also rejects such a path, but without the headers that have been set.
	if strings.Contains(relative, "..") {
		http.Error(w, "invalid URL path", http.StatusBadRequest)
		return
	}
	file := path.Join(l.directory, relative)
	_, err := os.Stat(file) //nolint:gosec // the path has no ".."; links are followed, as in kube-apiserver
	switch {
	case errors.Is(err, syscall.ENAMETOOLONG):
		http.Error(w, "file not found", http.StatusNotFound)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOTDIR):
		http.Error(w, "404 page not found", http.StatusNotFound)
	default:
		http.ServeFile(w, r, file) //nolint:gosec // as above
	}
}
