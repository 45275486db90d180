package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/request"
)

// running is a server under test.
type running struct {
	*Server
	drain  *request.Drain
	health *Health
	served chan error
}

func options(t testing.TB) Options {
	t.Helper()
	return Options{
		Config:  config.Serving{BindAddress: "127.0.0.1", CertDirectory: t.TempDir(), RequestTimeout: time.Minute},
		Handler: http.NotFoundHandler(), Drain: &request.Drain{}, Hosts: []string{"127.0.0.1", "localhost"},
		Health: NewHealth(0, clock.RealClock{}, logr.Discard()),
		Clock:  clock.RealClock{}, Logger: logr.Discard(), Registerer: prometheus.NewRegistry(),
	}
}

func serve(t testing.TB, o Options) *running {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Server: s, drain: o.Drain, health: o.Health, served: make(chan error, 1)}
	go func() { r.served <- s.Serve() }()
	t.Cleanup(func() { _ = s.Close() })
	return r
}

// client trusts the certificate in the file and speaks HTTP/2.
func client(t testing.TB, certFile string) *http.Client {
	t.Helper()
	content, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		t.Fatal("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestSelfSignedCertificate(t *testing.T) {
	o := options(t)
	o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	s := serve(t, o)
	certFile, keyFile := filepath.Join(o.Config.CertDirectory,
		"apiserver.crt"), filepath.Join(o.Config.CertDirectory, "apiserver.key")
	response, err := client(t, certFile).Get("https://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if body, _ := io.ReadAll(response.Body); string(body) != "HTTP/2.0" {
		t.Errorf("protocol %s", body)
	}
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v %v", info, err)
	}
	before, _ := os.ReadFile(certFile)
	if _, err := loadCertificates(o); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(certFile); string(after) != string(before) {
		t.Error("an existing certificate was replaced")
	}
}

// writePair writes a new self-signed pair by swapping a link, as the kubelet updates a mounted Secret.
func writePair(t testing.TB, directory, version string, hosts ...string) {
	t.Helper()
	certPEM, keyPEM, err := selfSigned(hosts, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(directory, version)
	for _, err := range []error{
		os.Mkdir(data, 0o755), os.WriteFile(filepath.Join(data, "tls.crt"), certPEM, 0o600),
		os.WriteFile(filepath.Join(data, "tls.key"), keyPEM, 0o600), os.Symlink(version, filepath.Join(directory, "..new")),
		os.Rename(filepath.Join(directory, "..new"), filepath.Join(directory, "..data")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shown returns the serial number of the certificate that the server shows for a name.
func shown(t testing.TB, address, name string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: name})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func serialOf(t testing.TB, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate.SerialNumber.String()
}

// reloads notifies its test of each reload.
type reloads struct {
	file string
	done chan struct{}
}

func (r *reloads) Files() []string { return []string{r.file} }

func (r *reloads) Reload() error {
	r.done <- struct{}{}
	return nil
}

func TestCertificateReload(t *testing.T) {
	directory := t.TempDir()
	writePair(t, directory, "..1", "first.example")
	for _, file := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(directory, file)); err != nil {
			t.Fatal(err)
		}
	}
	o := options(t)
	o.Config.CertFile, o.Config.KeyFile = filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key")
	reloaded := &reloads{file: o.Config.CertFile, done: make(chan struct{}, 100)} // after the certificate
	o.Reload = []Reloadable{reloaded}
	s := serve(t, o)
	for version := range 3 {
		if version > 0 {
			writePair(t, directory, "..next"+strings.Repeat("x", version), "next.example")
		}
		want := serialOf(t, o.Config.CertFile)
		for version > 0 && shown(t, s.Addr().String(), "") != want {
			<-reloaded.done // fails by the test's time-out if the change is never noticed
		}
		if got := shown(t, s.Addr().String(), ""); got != want {
			t.Errorf("version %d: shown %s, want %s", version, got, want)
		}
	}
	pair := &keyPair{certFile: o.Config.CertFile, keyFile: o.Config.KeyFile}
	if err := pair.Reload(); err != nil {
		t.Fatal(err)
	}
	before := pair.current.Load()
	if err := os.WriteFile(filepath.Join(directory, "..data", "tls.key"), []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pair.Reload(); err == nil || pair.current.Load() != before {
		t.Errorf("a broken pair was loaded: %v", err)
	}
}

func TestServerNames(t *testing.T) {
	o := options(t)
	serials := map[string]string{}
	for _, pair := range []struct{ version, host, names string }{
		{"a", "a.example", ""}, {"b", "b.example", "*.b.example,c.example"},
	} {
		directory := filepath.Join(t.TempDir())
		writePair(t, directory, "..1", pair.host)
		certFile := filepath.Join(directory, "..data", "tls.crt")
		value := certFile + "," + filepath.Join(directory, "..data", "tls.key")
		if pair.names != "" {
			value += ":" + pair.names
		}
		o.Config.SNICertKeys = append(o.Config.SNICertKeys, value)
		serials[pair.version] = serialOf(t, certFile)
	}
	s := serve(t, o)
	serials["standard"] = serialOf(t, filepath.Join(o.Config.CertDirectory, "apiserver.crt"))
	for name, want := range map[string]string{
		"a.example": "a", "x.b.example": "b", "b.example": "standard", "C.Example": "b",
		"y.x.b.example": "standard", "": "standard",
	} {
		if got := shown(t, s.Addr().String(), name); got != serials[want] {
			t.Errorf("%q is shown the wrong certificate, want %s", name, want)
		}
	}
	for _, bad := range []string{"a", "a,", ",b", "a,b,c"} {
		if _, err := parseSNI(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestTLSSettings(t *testing.T) {
	o := options(t)
	o.Config.TLSMinVersion = "VersionTLS13"
	s := serve(t, o)
	_, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err == nil {
		t.Error("TLS 1.2 was accepted")
	}
	for _, bad := range []config.Serving{{TLSMinVersion: "TLS1"}, {TLSCipherSuites: []string{"ROT13"}}} {
		if _, err := tlsConfigOf(bad, &certificates{}); err == nil {
			t.Errorf("%+v accepted", bad)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	o := options(t)
	first := serve(t, o)
	_, port, _ := strings.Cut(first.Addr().String(), ":")
	second := options(t)
	for _, digit := range port {
		second.Config.Port = second.Config.Port*10 + int(digit-'0')
	}
	if _, err := New(second); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the second server: %v", err)
	}
}

func TestSharedPort(t *testing.T) {
	o := options(t)
	o.Config.PermitPortSharing, o.Config.PermitAddressSharing = true, true
	first := serve(t, o)
	_, port, _ := strings.Cut(first.Addr().String(), ":")
	second := options(t)
	second.Config.PermitPortSharing = true
	for _, digit := range port {
		second.Config.Port = second.Config.Port*10 + int(digit-'0')
	}
	serve(t, second)
}

// TestShutdownOrder follows a shutdown step by step: readiness fails, the delay passes while preShutdown runs, the
// port closes, the running request finishes and the watch ends; only then does Shutdown return.
func TestShutdownOrder(t *testing.T) {
	c := testclock.NewFakeClock(time.Now())
	o := options(t)
	o.Clock, o.Config.ShutdownDelay = c, 10*time.Second
	entered, release := make(chan string, 2), make(chan struct{})
	o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			o.Health.ServeHTTP(w, r)
		case "/slow":
			if !o.Drain.Requests.Enter() {
				w.WriteHeader(503)
				return
			}
			defer o.Drain.Requests.Leave()
			entered <- "slow"
			<-release
			_, _ = io.WriteString(w, "done")
		case "/watch":
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			number, _ := o.Drain.Watches.Enter(cancel)
			defer o.Drain.Watches.Leave(number)
			w.(http.Flusher).Flush()
			entered <- "watch"
			<-ctx.Done()
			_, _ = io.WriteString(w, "ended")
		}
	})
	s := serve(t, o)
	hc := client(t, filepath.Join(o.Config.CertDirectory, "apiserver.crt"))
	url := "https://" + s.Addr().String()
	answers := make(chan string, 2)
	for _, path := range []string{"/slow", "/watch"} {
		go func() { answers <- path + " " + fetch(hc, url+path) }()
		<-entered
	}

	stopped := make(chan error, 1)
	prepare, prepared := make(chan struct{}), make(chan struct{})
	go func() {
		stopped <- s.Shutdown(t.Context(), nil, func(context.Context) { close(prepared); <-prepare })
	}()
	<-prepared            // although the delay has not passed
	for !c.HasWaiters() { // until Shutdown waits for the delay
		if got := fetch(hc, url+"/readyz"); strings.HasPrefix(got, "error") {
			t.Fatal(got)
		}
	}
	if got := fetch(hc, url+"/readyz"); !strings.HasPrefix(got, "500") {
		t.Errorf("readyz during the delay: %s", got)
	}
	c.Step(10 * time.Second)
	if got := fetch(hc, url+"/readyz"); !strings.HasPrefix(got, "500") {
		t.Errorf("readyz before preShutdown has returned: %s", got)
	}
	close(prepare)
	if err := <-s.served; err != nil { // the port is closed while both requests are still there
		t.Errorf("Serve: %v", err)
	}
	if got := <-answers; got != "/watch 200 ended" {
		t.Errorf("first answer %q", got)
	}
	select {
	case err := <-stopped:
		t.Fatalf("stopped with a request at hand: %v", err)
	default:
	}
	close(release)
	if got := <-answers; got != "/slow 200 done" {
		t.Errorf("second answer %q", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	hc.CloseIdleConnections()
	if got := fetch(hc, url+"/readyz"); !strings.HasPrefix(got, "error") {
		t.Errorf("afterwards: %s", got)
	}
}

// fetch returns code and body of a response, or "error ...".
func fetch(client *http.Client, url string) string {
	response, err := client.Get(url)
	if err != nil {
		return "error " + err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "error " + err.Error()
	}
	return response.Status[:3] + " " + string(body)
}

// TestWatchesEndOverTheGracePeriod checks the rate at which watches are ended.
func TestWatchesEndOverTheGracePeriod(t *testing.T) {
	c := testclock.NewFakeClock(time.Now())
	o := options(t)
	o.Clock, o.Config.ShutdownWatchTerminationGrace = c, time.Second
	s := &Server{options: o}
	ended := 0
	var numbers []int
	for range 1000 {
		number, _ := o.Drain.Watches.Enter(func() { ended++ })
		numbers = append(numbers, number)
	}
	all := o.Drain.Watches.Close()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.endWatches(t.Context(), all)
	}()
	var progress []int
	for len(progress) < 5 {
		if c.HasWaiters() {
			progress = append(progress, ended)
			c.Step(50 * time.Millisecond)
		}
	}
	for _, number := range numbers {
		o.Drain.Watches.Leave(number)
	}
	<-finished
	if !slices.IsSorted(progress) || progress[0] == 0 || progress[0] > 100 || progress[4] > 500 {
		t.Errorf("watches ended after each 50 ms: %v", progress)
	}
}

func noWork(context.Context) {}

func TestRetryAfterMode(t *testing.T) {
	o := options(t)
	o.Config.ShutdownSendRetryAfter = true
	s := serve(t, o)
	if err := s.Shutdown(t.Context(), nil, noWork); err != nil {
		t.Error(err)
	}
	if !o.Drain.Refusing() {
		t.Error("clients did not get Retry-After")
	}
	if err := <-s.served; err != nil {
		t.Error(err)
	}
}

// TestShutdownAfterAFailure checks that a server without its store does not keep serving for the delay.
func TestShutdownAfterAFailure(t *testing.T) {
	o := options(t)
	o.Clock, o.Config.ShutdownDelay = testclock.NewFakeClock(time.Now()), time.Hour
	s := serve(t, o)
	failed := make(chan struct{})
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context(), failed, noWork) }()
	close(failed)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestShutdownGivesUpWithItsContext(t *testing.T) {
	o := options(t)
	o.Drain.Requests.Enter() // the request never ends
	s := serve(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx, nil, noWork); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestClientsMoveDuringTheDelay checks that connections in use are closed after load balancers had time to react, and
// before requests get 429.
func TestClientsMoveDuringTheDelay(t *testing.T) {
	c := testclock.NewFakeClock(time.Now())
	o := options(t)
	o.Clock, o.Config.ShutdownDelay, o.Config.ShutdownSendRetryAfter = c, 10*time.Second, true
	s := serve(t, o)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context(), nil, noWork) }()
	for _, want := range []bool{false, true} {
		for !c.HasWaiters() {
			runtime.Gosched()
		}
		if got := o.Drain.MovingClients(); got != want || o.Drain.Refusing() {
			t.Errorf("got moving clients %t, refusing requests %t, want %t and false", got, o.Drain.Refusing(), want)
		}
		c.Step(5 * time.Second)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if !o.Drain.Refusing() {
		t.Error("requests do not get 429 after the delay")
	}
}
