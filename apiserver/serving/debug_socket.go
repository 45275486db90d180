package serving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
)

// ServeSocket serves handler on a Unix socket, without authentication and authorization, until ctx ends. It removes a
// socket that a former process has left at the path.
func ServeSocket(ctx context.Context, path string, handler http.Handler) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the former debug socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on the debug socket: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout, MaxHeaderBytes: maxHeaderBytes}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on the debug socket: %w", err)
	}
	return nil
}

// DebugMux returns the handler of a debug socket, which serves profiles and the flags that can be changed.
func DebugMux(verbosity Verbosity) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/debug/pprof", Profiling())
	mux.Handle("/debug/pprof/", Profiling())
	mux.Handle("/debug/flags", DebugFlags())
	mux.Handle("/debug/flags/", DebugFlags())
	mux.Handle("/debug/flags/v", VerbosityFlag(verbosity))
	return mux
}
