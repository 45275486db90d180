// Package page serves the status page of a sandbox: its clusters with their members, conditions and events. The page
// is rendered on the server, loads nothing from other hosts, and is read-only.
package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/render"
)

// Port of the status page.
const Port = 8080

// Cluster is a cluster on the page.
type Cluster struct {
	*overview.Overview
	Kubeconfig string // path of its file
}

// Data is the content of the page.
type Data struct {
	Now       time.Time
	Directory string // as given by the user
	Clusters  []Cluster
	Error     string // why the clusters could not be read
}

var (
	//go:embed page.html
	source string
	//go:embed page.css
	css string
	//go:embed page.js
	script string
)

var layout = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":   func() template.CSS { return template.CSS(css) },  //nolint:gosec // a constant of this package
	"js":    func() template.JS { return template.JS(script) }, //nolint:gosec // a constant of this package
	"ago":   func(now, t time.Time) string { return render.Age(now.Sub(t)) + " ago" },
	"bytes": render.Bytes, "cpu": render.CPU, "expected": overview.Expected, "rate": rate, "firstExpiry": firstExpiry,
	"in":    func(now, t time.Time) string { return render.Age(t.Sub(now)) },
	"lower": func(h overview.Health) string { return strings.ToLower(string(h)) },
}).Parse(source))

func rate(r *float64) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *r)
}

// firstExpiry returns the certificate that expires first, or nil.
func firstExpiry(all []overview.Certificate) *overview.Certificate {
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// Handler returns a handler that serves the page.
func Handler(read func(context.Context) Data, log logr.Logger) http.Handler {
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hash(css), hash(script))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		var content bytes.Buffer
		if err := layout.Execute(&content, read(r.Context())); err != nil {
			log.Error(err, "Failed to render the status page")
			http.Error(w, "Internal Server Error", http.StatusInternalServerError)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy)
		_, _ = w.Write(content.Bytes())
	})
	return guard(mux)
}

// hash returns a source of a Content-Security-Policy.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// guard rejects requests that pages of other sites may send: to another host name, which is how DNS rebinding reaches
// loopback addresses; with methods other than GET and HEAD; and from another site without navigation.
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

// isLoopback reports whether the Host of a request is a loopback address or localhost, which browsers resolve to one.
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

// Serve serves the page at an address until ctx is done.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log logr.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(log), slog.LevelInfo),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the status page: %w", err)
	}
	return nil
}
