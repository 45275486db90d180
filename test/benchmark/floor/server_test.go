package floor_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"quorate.dev/test/benchmark/floor"
	"quorate.dev/test/upstream"
)

// TestServer reads, writes and watches with a client certificate over HTTP/2.
func TestServer(t *testing.T) {
	t.Parallel()
	c := serve(t)
	if body, _ := c.do(t, http.MethodPost, floor.SizePath+"?bytes=20", ""); body != "" {
		t.Errorf("setting the size: got %q", body)
	}
	ready := strings.Repeat("x", 20)
	if body, protocol := c.do(t, http.MethodGet, "/things/a", ""); body != ready || protocol != "HTTP/2.0" {
		t.Errorf("a read: got %q over %s", body, protocol)
	}
	if body, _ := c.do(t, http.MethodGet, "/things?limit=1", ""); !strings.Contains(body, `"resourceVersion":"1"`) {
		t.Errorf("the start of a watch: got %q", body)
	}
	watch, err := c.send(t, http.MethodGet, "/things?watch=1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	for _, write := range []struct{ method, path, body string }{
		{http.MethodPost, "/things", "created\n"},
		{http.MethodPut, "/things/a", "longer than the size of events"},
		{http.MethodDelete, "/things/a", ""},
	} {
		if body, _ := c.do(t, write.method, write.path, write.body); body != ready {
			t.Errorf("%s: got %q", write.method, body)
		}
	}
	lines := bufio.NewReader(watch.Body)
	for _, want := range []string{
		"created            \n", "longer than the size of events\n", strings.Repeat(" ", 19) + "\n",
	} {
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Errorf("an event: got %q, want %q, %v", line, want, err)
		}
	}
	for _, size := range []string{"", "many", "-1"} {
		if body, _ := c.do(t, http.MethodPost, floor.SizePath+"?bytes="+size, ""); !strings.Contains(body, "not a size") {
			t.Errorf("the size %q: got %q", size, body)
		}
	}
}

// TestWrongFiles starts servers whose files are missing or hold no certificates.
func TestWrongFiles(t *testing.T) {
	t.Parallel()
	pki, err := upstream.NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, clients := pki.ServingFiles()
	for _, options := range []floor.Options{
		{Certificate: "missing", Key: key, Clients: clients},
		{Certificate: certificate, Key: key, Clients: "missing"},
		{Certificate: certificate, Key: key, Clients: key},
		{Certificate: certificate, Key: key, Clients: clients, Directory: filepath.Join(key, "no directory")},
	} {
		if err := floor.Run(t.Context(), options, func(string) { t.Error("the server serves") }); err == nil {
			t.Errorf("%+v: no error", options)
		}
	}
}

// client is the administrator.
type client struct {
	host string
	http *http.Client
}

// serve starts a server, which ends with the test.
func serve(t *testing.T) *client {
	t.Helper()
	directory := t.TempDir()
	pki, err := upstream.NewPKI(directory)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, clients := pki.ServingFiles()
	options := floor.Options{
		Certificate: certificate, Key: key, Clients: clients, Directory: filepath.Join(directory, "member"),
	}
	ctx, cancel := context.WithCancel(t.Context())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- floor.Run(ctx, options, func(a string) { address <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end of the server: %v", err)
		}
	})
	admin := pki.Admin(0)
	select {
	case err := <-ended:
		ended <- err
		t.Fatalf("the server has not started: %v", err)
	case a := <-address:
		admin.Host = "https://" + a
	}
	c, err := rest.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	return &client{admin.Host, c}
}

func (c *client) send(t *testing.T, method, path, body string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return c.http.Do(request)
}

// do returns the body and the protocol of a response.
func (c *client) do(t *testing.T, method, path, body string) (answer, protocol string) {
	t.Helper()
	response, err := c.send(t, method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all), response.Proto
}
