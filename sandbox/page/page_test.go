package page

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/plugin/overview"
	"quorate.dev/test/browser"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func fixture() Data {
	long := strings.Repeat("demo-0 has revision 8123 (raft term 4, index 9001); ", 6) + strings.Repeat("x", 200)
	degraded := metav1.Condition{Type: "Degraded", Status: "True", Reason: "PodsFailing", Message: long}
	o := &overview.Overview{
		Name: "demo", Namespace: "default", Created: now.Add(-time.Hour), Etcd: "embedded",
		Health: overview.Degraded, Ready: 2, Desired: 3, Voters: 3, Version: "v1.36.3",
		Certificates: []overview.Certificate{{Secret: "demo-admin", Expires: now.Add(300 * 24 * time.Hour)}},
		Conditions:   []metav1.Condition{{Type: "Available", Status: "True", Reason: "Serving", Message: "2 of 3"}, degraded},
		Problems:     []metav1.Condition{degraded},
		Next:         overview.Step{Text: "Read the logs <script>alert(1)</script>", Command: "kubectl quorate logs demo"},
		Events: []overview.Event{
			{
				Time: now, Object: "ApiServerCluster/demo", Reason: "LearnerPromoted", Message: "Promoted learner demo-2", Count: 1,
			},
			{Time: now, Object: "Pod/demo-1", Reason: "BackOff", Message: long, Warning: true, Count: 3},
		},
	}
	for i, role := range []string{"leader", "voter", "learner", "server"} {
		r := overview.Replica{Name: fmt.Sprintf("demo-%d", i), Role: role, Ready: i < 2, Status: "Running", DBSize: 1 << 20}
		if i < 2 {
			r.Usage = &overview.Usage{
				Revision: 8123, Lag: int64(i), Memory: 1 << 27, Watches: 4, Requests: ptr.To(12.5), CPU: ptr.To(0.034),
			}
		}
		o.Replicas = append(o.Replicas, r)
	}
	healthy := *o
	healthy.Name, healthy.Health, healthy.Problems, healthy.Next.Command = "other", overview.Healthy, nil, ""
	return Data{Now: now, Directory: ".quorate", Clusters: []Cluster{{o, ".quorate/demo.kubeconfig"}, {&healthy, "b"}}}
}

func serve(t *testing.T, read func() Data) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(Handler(func(context.Context) Data { return read() }))
	t.Cleanup(server.Close)
	return server
}

// TestPageIsWellFormed checks what browsers and screen readers depend on, without a browser.
func TestPageIsWellFormed(t *testing.T) {
	server := serve(t, fixture)
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	document, err := html.Parse(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	seen, ids, text := map[string]int{}, map[string]bool{}, strings.Builder{}
	for node := range document.Descendants() {
		if node.Type == html.TextNode {
			text.WriteString(node.Data)
			continue
		}
		seen[node.Data]++
		for _, attribute := range node.Attr {
			switch attribute.Key {
			case "id":
				if ids[attribute.Val] {
					t.Errorf("the id %s occurs twice", attribute.Val)
				}
				ids[attribute.Val] = true
			case "src", "href", "style", "onclick":
				if attribute.Val != "data:," {
					t.Errorf("<%s %s=%q> loads something or is blocked by the policy", node.Data, attribute.Key, attribute.Val)
				}
			case "lang":
				seen["lang="+attribute.Val]++
			}
		}
	}
	for element, want := range map[string]int{
		"lang=en": 1, "title": 1, "h1": 1, "h2": 2, "h4": 8, "main": 1, "section": 2, "script": 1, "label": 1,
	} {
		if seen[element] != want {
			t.Errorf("%d of %s, want %d", seen[element], element, want)
		}
	}
	for _, want := range []string{
		"demo-3", "1 behind", "12.5", "34m", "needs attention", "alert(1)", "(3 times)", "demo-admin, in 300d",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
	policy := response.Header.Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'",
	} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q does not contain %q", policy, want)
		}
	}
}

func TestPageWithoutClusters(t *testing.T) {
	for _, test := range []struct {
		data Data
		want string
	}{
		{Data{Now: now}, "There is no ApiServerCluster"}, {
			Data{Now: now, Error: "connection <refused>"}, "connection &lt;refused&gt;",
		},
	} {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/", nil)
		Handler(func(context.Context) Data { return test.data }).ServeHTTP(recorder, request)
		if body := recorder.Body.String(); recorder.Code != http.StatusOK || !strings.Contains(body, test.want) {
			t.Errorf("status %d, no %q in %s", recorder.Code, test.want, body)
		}
	}
}

// TestDataIsEscaped puts markup into every kind of place that data has: text, and quoted values of attributes.
func TestDataIsEscaped(t *testing.T) {
	page := document{}
	page.format(`<p class="%s">%s</p>`, `a" onclick="b`, "<script>'&")
	if got, want := page.content.String(), `<p class="a&#34; onclick=&#34;b">&lt;script&gt;&#39;&amp;</p>`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestForeignRequestsAreRejected sends the requests with which other sites reach a loopback address: through DNS
// rebinding, or from their pages.
func TestForeignRequestsAreRejected(t *testing.T) {
	handler := Handler(func(context.Context) Data { return Data{Now: now} })
	for _, test := range []struct {
		method, host, site, mode string
		want                     int
	}{
		{"GET", "127.70.0.5:8080", "", "", 200}, {"HEAD", "127.70.0.5:8080", "none", "navigate", 200},
		{"GET", "localhost:9999", "", "", 200}, {"GET", "[::1]:8080", "", "", 200}, {
			"GET", "127.70.0.5:8080", "same-origin", "cors", 200,
		},
		{"GET", "127.70.0.5:8080", "cross-site", "navigate", 200},
		{"GET", "rebound.example:8080", "", "", 421}, {"GET", "127.0.0.1.example", "", "", 421},
		{"GET", "192.0.2.1:8080", "", "", 421}, {"GET", "localhost.example", "", "", 421}, {
			"POST", "rebound.example", "", "", 421,
		},
		{"POST", "127.70.0.5:8080", "", "", 405}, {"DELETE", "localhost", "", "", 405}, {"OPTIONS", "localhost", "", "", 405},
		{"GET", "127.70.0.5:8080", "cross-site", "no-cors", 403},
	} {
		request := httptest.NewRequest(test.method, "http://"+test.host+"/", nil)
		request.Header.Set("Sec-Fetch-Site", test.site)
		request.Header.Set("Sec-Fetch-Mode", test.mode)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		if recorder.Code != test.want {
			t.Errorf("%s of %s from %q: status %d, want %d", test.method, test.host, test.site, recorder.Code, test.want)
		}
	}
}

// contrast returns the texts with less contrast to the background than WCAG AA requires.
const contrast = `(() => {
	const channels = (color) => color.match(/[\d.]+/g).map(Number);
	const luminance = (color) => channels(color).slice(0, 3).map((v) => v / 255)
		.map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const background = (e) => {
		for (; e; e = e.parentElement) {
			const color = getComputedStyle(e).backgroundColor;
			if (channels(color)[3] !== 0) return color;
		}
		return 'rgb(255, 255, 255)';
	};
	return [...document.body.querySelectorAll('*')].filter((e) => {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest('script,noscript')) return false;
		const [a, b] = [luminance(getComputedStyle(e).color), luminance(background(e))].sort((x, y) => y - x);
		return (a + 0.05) / (b + 0.05) < 4.5;
	}).map((e) => e.outerHTML.slice(0, 80));
})()`

// TestPageInBrowser renders the page for a phone and a desktop, light and dark.
func TestPageInBrowser(t *testing.T) {
	data := fixture()
	server := serve(t, func() Data { data.Now = time.Now(); return data })
	tab := browser.Open(t)
	for _, screen := range []browser.Screen{
		{Width: 320, Height: 600, Mobile: true}, {Width: 390, Height: 844, Mobile: true, Dark: true},
		{Width: 1280, Height: 800},
	} {
		tab.Show(screen, server.URL)
		var width int
		if tab.Evaluate("document.documentElement.scrollWidth", &width); width > screen.Width {
			t.Errorf("the page is %d pixels wide on a screen of %d", width, screen.Width)
		}
		var faint []string
		if tab.Evaluate(contrast, &faint); len(faint) > 0 {
			t.Errorf("%+v: too little contrast: %q", screen, faint)
		}
		var background string
		tab.Evaluate("getComputedStyle(document.body).backgroundColor", &background)
		if dark := background == "rgb(18, 22, 27)"; dark != screen.Dark {
			t.Errorf("%+v: the background is %s", screen, background)
		}
	}
	tab.Evaluate("(window.first = document.querySelector('main').dataset.time, true)", new(bool))
	tab.Wait("document.querySelector('main').dataset.time > first")
	server.Close()
	tab.Wait("document.getElementById('state').textContent.includes('does not respond')")
}

// TestServeEndsWithItsContext also checks that the listener is closed.
func TestServeEndsWithItsContext(t *testing.T) {
	listener := httptest.NewUnstartedServer(nil).Listener
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, http.NotFoundHandler(), logr.Discard()) }()
	cancel(errors.New("stopped"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Error("the listener is open")
	}
}

// TestConnectionsAreBounded opens many connections that send nothing, as another user of the machine can. The page
// accepts a bounded number of them.
func TestConnectionsAreBounded(t *testing.T) {
	listener := &counting{
		Listener: httptest.NewUnstartedServer(nil).Listener, accepted: make(chan struct{}, 10*maxConnections),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, http.NotFoundHandler(), logr.Discard()) }()
	for range 2 * maxConnections {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
	}
	for range maxConnections {
		<-listener.accepted
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if more := len(listener.accepted); more > 0 {
		t.Errorf("accepted %d connections more than %d", more, maxConnections)
	}
}

// counting counts the accepted connections.
type counting struct {
	net.Listener
	accepted chan struct{}
}

// Accept implements net.Listener.
func (c *counting) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err == nil {
		c.accepted <- struct{}{}
	}
	return connection, err
}

func TestPolicyHashesDiffer(t *testing.T) {
	if hashes := []string{hash(css), hash(script)}; len(slices.Compact(hashes)) != 2 {
		t.Errorf("got %q", hashes)
	}
}
