package replica

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const text = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",verb="GET"} 90
apiserver_request_total{code="404",verb="GET"} 5
apiserver_request_total{code="503",verb="LIST"} 5
# TYPE apiserver_current_inflight_requests gauge
apiserver_current_inflight_requests{request_kind="mutating"} 1
apiserver_current_inflight_requests{request_kind="readOnly"} 2
# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{verb="WATCH"} 7
apiserver_longrunning_requests{verb="CONNECT"} 1
# TYPE apiserver_watch_cache_resource_version gauge
apiserver_watch_cache_resource_version{resource="pods"} 1.000000041e+09
apiserver_watch_cache_resource_version{resource="nodes"} 1.000000042e+09
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.17956608e+08
`

const member = `# TYPE etcd_debugging_mvcc_current_revision gauge
etcd_debugging_mvcc_current_revision 8123
# TYPE etcd_mvcc_db_total_size_in_bytes gauge
etcd_mvcc_db_total_size_in_bytes 2.5165824e+07
# TYPE etcd_mvcc_db_total_size_in_use_in_bytes gauge
etcd_mvcc_db_total_size_in_use_in_bytes 1.048576e+06
# TYPE etcd_server_quota_backend_bytes gauge
etcd_server_quota_backend_bytes 5.153960754e+09
`

func parse(t *testing.T, text string, at time.Time) Sample {
	t.Helper()
	s, err := Parse(strings.NewReader(text), at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParse(t *testing.T) {
	at := time.Unix(100, 0)
	want := Sample{
		Time: at, Requests: 100, Errors: 5, InFlight: 3, Watches: 7, CPU: 12.5, Memory: 117956608, Revision: 1000000042,
	}
	if got := parse(t, text, at); got != want {
		t.Errorf("without a member: got %+v, want %+v", got, want)
	}
	want.Revision, want.DBSize, want.DBInUse, want.DBQuota = 8123, 25165824, 1048576, 5153960754
	if got := parse(t, text+member, at); got != want {
		t.Errorf("with a member: got %+v, want %+v", got, want)
	}
	if _, err := Parse(strings.NewReader("<html>"), at); err == nil {
		t.Error("a page was accepted as metrics")
	}
}

func TestRates(t *testing.T) {
	first := Sample{Time: time.Unix(100, 0), Requests: 100, Errors: 5, CPU: 12}
	second := Sample{Time: time.Unix(104, 0), Requests: 180, Errors: 5, CPU: 13}
	if rates, ok := second.Rates(first); !ok || rates != (Rates{Requests: 20, CPU: 0.25}) {
		t.Errorf("got %+v, %t", rates, ok)
	}
	restarted := Sample{Time: time.Unix(104, 0), Requests: 2, CPU: 1}
	for _, earlier := range []Sample{first, {}, restarted} {
		if _, ok := restarted.Rates(earlier); ok {
			t.Errorf("a restarted process has rates since %+v", earlier)
		}
	}
}

// TestConnect checks that the server receives the input and its end, and that the response is complete.
func TestConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		request, _ := io.ReadAll(connection)
		_, _ = connection.Write(bytes.ToUpper(request))
	}()
	var out bytes.Buffer
	address := netip.MustParseAddrPort(listener.Addr().String())
	if err := connect(t.Context(), address, strings.NewReader("request"), &out); err != nil || out.String() != "REQUEST" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	listener.Close()
	if err := connect(t.Context(), address, strings.NewReader(""), &out); err == nil {
		t.Error("no error without a server")
	}
	t.Setenv("POD_IP", "")
	if err := Connect(t.Context(), nil); err == nil {
		t.Error("no error outside a pod")
	}
}

// TestTunnelReportsTheCommandsError checks that a missing permission is not reported as a closed connection.
func TestTunnelReportsTheCommandsError(t *testing.T) {
	near, far := net.Pipe()
	cause := errors.New("pods/exec is forbidden")
	tunnel := &tunnel{Conn: near, cancel: func() {}, done: make(chan struct{}), err: cause}
	close(tunnel.done)
	far.Close()
	if _, err := tunnel.Read(make([]byte, 1)); !errors.Is(err, cause) {
		t.Errorf("read: %v", err)
	}
	if _, err := tunnel.Write([]byte("x")); !errors.Is(err, cause) {
		t.Errorf("write: %v", err)
	}
}
