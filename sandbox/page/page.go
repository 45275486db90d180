// Package page serves the status page of a sandbox: its clusters with their members, conditions and events. The server
// renders the page, which is read-only and loads nothing from other hosts.
package page

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"

	"quorate.dev/plugin/overview"
)

// Port is the port of the status page.
const Port = 8080

// Cluster is a cluster on the page.
type Cluster struct {
	*overview.Overview
	Kubeconfig string // path of the kubeconfig file
}

// Data is the content of the page.
type Data struct {
	Now       time.Time
	Directory string // directory of the sandbox as the user gave it
	Clusters  []Cluster
	Error     string // why the clusters could not be read; empty: they could
}

// Handler returns a handler that serves the page with the data that read returns.
func Handler(read func(context.Context) Data) http.Handler {
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hash(css), hash(script))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		content := read(r.Context()).html()
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy)
		_, _ = w.Write(content)
	})
	return guard(mux)
}

// hash returns the source expression of a Content-Security-Policy for an inline script or style.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// guard rejects requests that pages of other sites may send: requests for another host name, with which DNS rebinding
// reaches loopback addresses; requests with methods other than GET and HEAD; and requests from another site that do not
// navigate to the page.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case !isLoopback(r.Host):
			http.Error(w, "Use the address that the sandbox printed.", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		case site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
			http.Error(w, "Forbidden", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLoopback reports whether the Host of a request is a loopback address, or localhost, which browsers resolve to one.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	if name == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && address.IsLoopback()
}

// maxConnections bounds the connections of the page. Other users of the machine can connect, and could otherwise use
// all file descriptors of the process, with which the node starts pods and forwards connections. Further connections
// wait.
const maxConnections = 128

// Serve serves the page at an address until ctx is done.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log logr.Logger) error {
	server := &http.Server{
		// Other users of the machine can connect, and must not hold connections or memory.
		Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog:    slog.NewLogLogger(logr.ToSlogHandler(log), slog.LevelInfo),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the status page: %w", err)
	}
	return nil
}
