package limits

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// TestIdleConnectionsLeaveDescriptors opens more connections than the process may have files. The etcd member must
// still save snapshots, and users must still be served, on new connections too.
func TestIdleConnectionsLeaveDescriptors(t *testing.T) {
	upstream.NeedsTime(t)
	s := start(t, []string{"--etcd-snapshot-count=20"}, "sh", "-c", `ulimit -n 300 && exec "$@"`, "sh")
	address, err := url.Parse(s.Admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	for range 400 {
		conn, err := net.Dial("tcp", address.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	await(t, "connections are closed", func(ctx context.Context) bool {
		return s.metric(t, "quorate_connections_closed_total") > 0
	})
	for i := range 100 {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: strconv.Itoa(i)}}
		if _, err := s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), object, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-s.Ended():
		t.Fatal("the server has ended")
	default:
	}
	fresh := rest.CopyConfig(s.Admin)
	fresh.Dial = new(net.Dialer).DialContext // not shared with the other client
	client, err := rest.HTTPClientFor(fresh)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, err := get(t.Context(), client, fresh.Host+"/api/v1/namespaces/default"); err != nil ||
		code != http.StatusOK {
		t.Errorf("a user on a new connection: %d, %v", code, err)
	}
}
