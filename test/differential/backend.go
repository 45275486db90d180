package differential

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
)

// startPlain starts the extension API server whose responses depend on the last element of the path, and returns its
// authority. Its certificate is valid for the Services of some scripts.
func startPlain() (*httptest.Server, []byte, error) {
	chain, key, err := cert.GenerateSelfSignedCertKey("plain", nil, []string{"*.d-aggregation.svc"})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of the extension API server: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, nil, err
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(servePlain))
	server.EnableHTTP2, server.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	return server, chain, nil
}

func servePlain(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	name := parts[len(parts)-1]
	status, isStatus := strings.CutPrefix(name, "status-")
	switch {
	case parts[0] == "openapi" || len(parts) < 3:
		http.NotFound(w, r)
	case len(parts) == 3:
		serveResourceList(w, r, parts[1], parts[2])
	case isStatus:
		code, err := strconv.Atoi(status)
		if err != nil {
			code = http.StatusBadRequest
		}
		w.Header().Set("Retry-After", "7")
		http.Error(w, "the status that the path names", code)
	case r.Header.Get("Upgrade") != "":
		serveUpgrade(w, r, name)
	default:
		serveNamed(w, r, name)
	}
}

// serveResourceList serves the document that the availability check requests, in the way that the name of the group
// says.
func serveResourceList(w http.ResponseWriter, r *http.Request, group, version string) {
	switch behaviour, _, _ := strings.Cut(group, "."); behaviour {
	case "never":
		<-r.Context().Done()
	case "moved":
		http.Redirect(w, r, "/apis/plain.example.com/v1", http.StatusFound)
	case "broken":
		http.Error(w, "broken", http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/%s","resources":[]}`,
			group, version)
	}
}

func serveNamed(w http.ResponseWriter, r *http.Request, name string) {
	switch name {
	case "redirect":
		http.Redirect(w, r, "/apis/plain.example.com/v1/echo", http.StatusFound)
	case "redirect-nowhere":
		w.WriteHeader(http.StatusFound)
	case "html":
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<html><body><a href="/apis/plain.example.com/v1/echo">here</a></body></html>`)
	case "headers":
		w.Header().Set("Warning", `299 - "from the extension API server"`)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Audit-Id", "of-the-extension")
		w.Header().Set("X-Own", "kept")
		_, _ = io.WriteString(w, "headers")
	case "big":
		w.Header().Set("Content-Type", "application/octet-stream")
		for range 64 {
			_, _ = io.WriteString(w, strings.Repeat("big ", 32<<10))
		}
	case "cut":
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "ten bytes.")
		panic(http.ErrAbortHandler)
	case "drop":
		panic(http.ErrAbortHandler)
	case "never":
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	case "stream":
		serveStream(w, r)
	default:
		serveEcho(w, r)
	}
}

// serveStream sends two events, and a third one after the client has had time to receive them. It then waits until the
// client closes the connection.
func serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json;stream=watch")
	for _, kind := range []string{"ADDED", "MODIFIED", "DELETED"} {
		_, _ = fmt.Fprintf(w,
			`{"type":%q,"object":{"kind":"Thing","apiVersion":"plain.example.com/v1","metadata":{"name":"a"}}}`+"\n", kind)
		_ = http.NewResponseController(w).Flush()
	}
	<-r.Context().Done()
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// serveEcho responds with the request as it has received it.
func serveEcho(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	size, err := io.Copy(hash, r.Body)
	headers := map[string][]string{}
	for name, values := range r.Header {
		if len(values) == 1 && uuidPattern.MatchString(values[0]) {
			values = []string{"<random>"}
		}
		headers[name] = values
	}
	echo := map[string]any{
		"method": r.Method, "uri": r.URL.RequestURI(), "headers": headers, "protocol": r.Proto, "length": r.ContentLength,
		"body": fmt.Sprintf("%d bytes, hash %x, error %v", size, hash.Sum(nil)[:4], err), "client": "",
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		echo["client"] = r.TLS.PeerCertificates[0].Subject.String()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(echo)
}

// serveUpgrade switches protocols, and sends the first message of the client back.
func serveUpgrade(w http.ResponseWriter, r *http.Request, name string) {
	switch name {
	case "refuse":
		http.Error(w, "no upgrade", http.StatusForbidden)
		return
	case "ignore":
		serveEcho(w, r)
		return
	case "never":
		<-r.Context().Done()
		return
	}
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
		r.Header.Get("Upgrade"))
	line, err := buffer.ReadString('\n')
	_, _ = fmt.Fprintf(conn, "%s says %q, error %v", r.Header.Get("X-Remote-User"), line, err)
}

func encodePEM(bundle []byte) string { return base64.StdEncoding.EncodeToString(bundle) }
