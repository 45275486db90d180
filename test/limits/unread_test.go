package limits

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// streamsPerConnection is the servers' limit of concurrent streams.
const streamsPerConnection = 100

// unread is an HTTP/2 connection whose client opens streams and reads none of their content.
type unread struct {
	conn   net.Conn
	framer *http2.Framer
	stream uint32 // ID of the newest one
	reads  chan error
}

// connectUnread connects with the certificate of a user, and with a window of 0 bytes for each stream.
func connectUnread(t *testing.T, config *rest.Config) *unread {
	t.Helper()
	address, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	options, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	options.NextProtos = []string{http2.NextProtoTLS}
	conn, err := tls.Dial("tcp", address.Host, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c := &unread{conn: conn, framer: http2.NewFramer(conn, conn), reads: make(chan error, 1)}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	go c.readFrames()
	return c
}

// readFrames reads frames, as the connection of a live client does, until the connection ends.
func (c *unread) readFrames() {
	for {
		if _, err := c.framer.ReadFrame(); err != nil {
			c.reads <- err
			return
		}
	}
}

// get sends a request on a new stream.
func (c *unread) get(t *testing.T, path string, headers ...string) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{":method", "GET", ":scheme", "https", ":authority", "server", ":path", path}, headers...)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	c.stream += 2
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: c.stream - 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnreadResponsesDelayNoOtherUser leaves 400 responses unread. Another user of the same priority level must not
// wait, and the server must end the responses.
func TestUnreadResponsesDelayNoOtherUser(t *testing.T) {
	upstream.NeedsTime(t)
	s := start(t, []string{"--max-requests-inflight=40", "--max-mutating-requests-inflight=20"})
	alice, bob := s.as(t, "alice"), s.as(t, "bob")
	client, err := rest.HTTPClientFor(bob)
	if err != nil {
		t.Fatal(err)
	}
	request := func() time.Duration {
		began := time.Now()
		code, _, err := get(t.Context(), client, bob.Host+"/openapi/v2")
		if err != nil || code != http.StatusOK {
			t.Fatalf("%d, %v", code, err)
		}
		return time.Since(began)
	}
	request()
	for range 4 {
		connection := connectUnread(t, alice)
		for range streamsPerConnection {
			connection.get(t, "/openapi/v2")
		}
	}
	worst := request()
	for range 9 {
		worst = max(worst, request())
	}
	t.Logf("another user waited for at most %v", worst)
	if worst > 5*time.Second {
		t.Errorf("another user waited for %v", worst)
	}
	await(t, "the seats are free", func(context.Context) bool {
		return s.metric(t, `apiserver_flowcontrol_current_executing_seats{flow_schema="global-default"`) == 0
	})
	await(t, "unread responses end", func(context.Context) bool {
		return s.metric(t, "quorate_stalled_responses") == 0 && s.metric(t, "quorate_reset_responses_total") > 0
	})
}

// TestUnreadResponsesAreBoundedInMemory leaves 400 responses in YAML of an object of 900 KB unread.
func TestUnreadResponsesAreBoundedInMemory(t *testing.T) {
	upstream.NeedsTime(t)
	s := start(t, nil)
	alice, bob := s.as(t, "alice"), s.as(t, "bob")
	for _, config := range []*rest.Config{alice, bob} {
		config.QPS = -1
	}
	values := map[string]string{}
	for i := range 9000 {
		values[fmt.Sprintf("key-%d", i)] = strings.Repeat("x", 90)
	}
	large := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "large"}, Data: values}
	if _, err := s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), large, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path, requests = "/api/v1/namespaces/default/configmaps/large", 400
	client, err := rest.HTTPClientFor(bob)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, err := get(t.Context(), client, bob.Host+path); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v", code, err)
	}
	before := s.memory(t, "VmRSS")
	for range requests / streamsPerConnection {
		connection := connectUnread(t, alice)
		for range streamsPerConnection {
			connection.get(t, path, "accept", "application/yaml")
		}
	}
	reader, err := kubernetes.NewForConfig(bob)
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for began := time.Now(); time.Since(began) < 15*time.Second; served++ {
		if _, err := reader.CoreV1().ConfigMaps("default").Get(t.Context(), "large", meta.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	most := s.memory(t, "VmHWM") - before
	t.Logf("%d MiB more than the %d MiB before; another user got the object %d times meanwhile", most, before, served)
	if most > 300 {
		t.Errorf("unread responses took %d MiB", most)
	}
}
