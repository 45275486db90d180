package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// TestRotation replaces all certificate authorities and the service-account key of a cluster whose certificates are
// valid for minutes, while clients write, watch and open connections.
func TestRotation(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	s := startSandbox(t)
	s.settled(3, 3)
	s.configure(map[string]any{
		"lifetime":           "2m",
		"authorities":        map[string]any{"lifetime": "30m", "overlap": "10s"},
		"serviceAccountKeys": map[string]any{"publicationPeriod": "2s", "overlap": "10s"},
	})
	s.createKubeconfig("follower", "1m")
	s.createKubeconfig("stale", "20m")
	stale := s.kubeconfig("stale")
	token := s.token()
	h := record(t, s.following())
	clients := s.openConnections(map[string]func() (*rest.Config, error){
		"admin":    func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", s.demo) },
		"follower": func() (*rest.Config, error) { return s.published("follower") },
	})
	during := map[string]*connections{
		"authorities": s.openConnections(map[string]func() (*rest.Config, error){
			"stale": func() (*rest.Config, error) { return stale, nil },
		}),
		"keys": s.openConnections(map[string]func() (*rest.Config, error){
			"token": func() (*rest.Config, error) { return withToken(stale, token), nil },
		}),
	}

	s.quorate("rotate", "authorities", "demo")
	s.quorate("rotate", "service-account-keys", "demo")
	h.longestGap()
	s.watchRotation(during)
	s.settled(3, 3)
	t.Logf("longest time without a confirmed write: %s", h.longestGap())
	clients.stop()
	if err := get(t.Context(), stale); err == nil {
		t.Error("a kubeconfig from before the rotation is still valid")
	}
	current := s.kubeconfig("follower")
	if err := get(t.Context(), withToken(current, token)); !apierrors.IsUnauthorized(err) {
		t.Errorf("got %v for a token of the old key, want Unauthorized", err)
	}
	if err := get(t.Context(), current); err != nil {
		t.Errorf("the renewed kubeconfig: %v", err)
	}
	h.verify()
	s.removeKubeconfig("follower")
}

// configure merges values into spec.certificates of demo.
func (s *sandbox) configure(certificates map[string]any) {
	s.t.Helper()
	patch := must(json.Marshal(map[string]any{"spec": map[string]any{"certificates": certificates}}))(s.t)
	s.run(s.management, "patch", "apiservercluster/demo", "--type=merge", "-p", string(patch))
}

// createKubeconfig creates an ApiServerKubeconfig that connects to the address of demo's Service on this machine, and
// waits until it is ready. Its user has all permissions.
func (s *sandbox) createKubeconfig(name, validity string) {
	s.t.Helper()
	lifetime := must(time.ParseDuration(validity))(s.t)
	s.run(s.demo, "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", "--user="+name)
	check(s.t, s.clusters.Create(s.t.Context(), &v1alpha1.ApiServerKubeconfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.ApiServerKubeconfigSpec{
			ClusterRef: corev1.LocalObjectReference{Name: "demo"}, User: name, Groups: []string{"testers"},
			Validity: &metav1.Duration{Duration: lifetime}, Server: s.demoConfig().Host, TLSServerName: "demo.default.svc",
		},
	}))
	s.run(s.management, "wait", "--for=condition=Ready", "apiserverkubeconfig/"+name, "--timeout=60s")
}

// removeKubeconfig deletes an ApiServerKubeconfig, and its Secret with it.
func (s *sandbox) removeKubeconfig(name string) {
	s.t.Helper()
	s.run(s.management, "delete", "apiserverkubeconfig/"+name)
	_, err := s.pods.CoreV1().Secrets("default").Get(s.t.Context(), name+"-kubeconfig", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		s.t.Errorf("the Secret of the deleted kubeconfig: %v, want NotFound", err)
	}
}

// published returns the client configuration in the Secret of an ApiServerKubeconfig.
func (s *sandbox) published(name string) (*rest.Config, error) {
	secret, err := s.pods.CoreV1().Secrets("default").Get(s.t.Context(), name+"-kubeconfig", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return clientcmd.RESTConfigFromKubeConfig(secret.Data["kubeconfig"])
}

func (s *sandbox) kubeconfig(name string) *rest.Config {
	s.t.Helper()
	config := must(s.published(name))(s.t)
	config.QPS = -1
	return config
}

// token returns a service-account token.
func (s *sandbox) token() string {
	s.t.Helper()
	client := must(kubernetes.NewForConfig(s.demoConfig()))(s.t)
	s.run(s.demo, "create", "serviceaccount", "rotation")
	s.run(s.demo, "create", "clusterrolebinding", "rotation", "--clusterrole=cluster-admin",
		"--serviceaccount=default:rotation")
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)},
	}
	return must(client.CoreV1().ServiceAccounts("default").CreateToken(s.t.Context(), "rotation", request,
		metav1.CreateOptions{}))(s.t).Status.Token
}

// withToken returns a configuration that verifies the server like another one and authenticates with a token.
func withToken(config *rest.Config, token string) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	return config
}

// connections are clients that each open a new connection for every request.
type connections struct {
	t      *testing.T
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	done   sync.WaitGroup
	count  atomic.Int64
}

// openConnections sends requests with the configurations that the functions return, read again for every request.
func (s *sandbox) openConnections(configs map[string]func() (*rest.Config, error)) *connections {
	ctx, cancel := context.WithCancel(s.t.Context())
	c := &connections{t: s.t, ctx: ctx, cancel: cancel}
	for name, config := range configs {
		c.done.Go(func() {
			for ctx.Err() == nil {
				loaded, err := config()
				if err == nil {
					err = get(ctx, loaded)
				}
				if err != nil && ctx.Err() == nil {
					s.t.Errorf("%s: request %d failed at %s: %v", name, c.count.Load(), time.Now().Format(time.TimeOnly), err)
				}
				c.count.Add(1)
			}
		})
	}
	return c
}

// stop ends the requests. Later calls have no effect.
func (c *connections) stop() {
	c.t.Helper()
	if c.ctx.Err() != nil {
		return
	}
	c.cancel()
	c.done.Wait()
	c.t.Logf("%d requests, each on a new connection", c.count.Load())
}

// get reads an object through a new connection. Like client-go, it repeats the request if the server closed the
// connection before it responded.
func get(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	api, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = api.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	return err
}

// watchRotation waits until the rotations of demo's authorities and keys have passed through their stages. In the
// middle of Reissue it stops the clients that use credentials that are dropped afterwards.
func (s *sandbox) watchRotation(clients map[string]*connections) {
	s.t.Helper()
	seen := map[string][]string{}
	s.waitFor("the rotations end", func() (bool, string) {
		rotations := s.cluster().Status.Rotations
		if rotations == nil {
			return len(seen) == 2, fmt.Sprint(seen)
		}
		for name, one := range map[string]*v1alpha1.Rotation{
			"authorities": rotations.Authorities, "keys": rotations.ServiceAccountKeys,
		} {
			if one == nil {
				continue
			}
			if !slices.Contains(seen[name], one.Stage) {
				seen[name] = append(seen[name], one.Stage)
				s.t.Logf("%s: %s since %s", name, one.Stage, one.StageSince.UTC().Format(time.TimeOnly))
			}
			if one.Stage == v1alpha1.StageReissue && time.Since(one.StageSince.Time) > 4*time.Second {
				clients[name].stop()
			}
		}
		return false, fmt.Sprint(seen)
	})
	for name, stages := range seen {
		if want := []string{v1alpha1.StageTrustBoth, v1alpha1.StageReissue,
			v1alpha1.StageDropOld}; !slices.Equal(stages, want) {
			s.t.Errorf("%s: got stages %v, want %v", name, stages, want)
		}
	}
}

// following returns a client configuration that follows the administrator's kubeconfig.
func (s *sandbox) following() *rest.Config {
	return &rest.Config{Host: s.demoConfig().Host, QPS: -1, Transport: &follower{file: s.demo}}
}

// follower sends each request with the present content of a kubeconfig.
type follower struct {
	file string

	mu      sync.Mutex
	content []byte
	current http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *follower) RoundTrip(r *http.Request) (*http.Response, error) {
	transport, err := f.transport()
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(r)
}

func (f *follower) transport() (http.RoundTripper, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content, err := os.ReadFile(f.file)
	if err != nil || bytes.Equal(content, f.content) {
		return f.current, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, err
	}
	config.Dial = (&net.Dialer{Timeout: requestTimeout}).DialContext // a separate connection
	transport, err := rest.TransportFor(config)
	if err == nil {
		f.content, f.current = content, transport
	}
	return transport, err
}

// TestRotationByAge replaces authorities that are valid for minutes by age, several times.
func TestRotationByAge(t *testing.T) {
	if os.Getenv("QUORATE_ROTATION") == "" {
		t.Skip("takes 15 minutes; set QUORATE_ROTATION=full")
	}
	s := startSandbox(t)
	s.settled(3, 3)
	s.configure(map[string]any{
		"lifetime": "2m",
		"authorities": map[string]any{
			"lifetime": "6m", "overlap": "20s", "rotateBefore": time.Now().UTC().Format(time.RFC3339),
		},
		"serviceAccountKeys": map[string]any{"maxAge": "4m", "publicationPeriod": "10s", "overlap": "20s"},
	})
	s.createKubeconfig("follower", "1m")
	h := record(t, s.following())
	clients := s.openConnections(map[string]func() (*rest.Config, error){
		"admin":    func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", s.demo) },
		"follower": func() (*rest.Config, error) { return s.published("follower") },
	})
	seen := map[string]bool{}
	deadline := time.Now().Add(15 * time.Minute)
	for len(seen) < 4 && time.Now().Before(deadline) {
		secret := must(s.pods.CoreV1().Secrets("default").Get(t.Context(), "demo-client-ca", metav1.GetOptions{}))(t)
		signer, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
		seen[string(signer.Bytes)] = true
		select {
		case <-time.After(time.Second):
		case <-t.Context().Done():
		}
	}
	if len(seen) < 4 {
		t.Errorf("got %d authorities within 15 minutes, want 4", len(seen))
	}
	clients.stop()
	t.Logf("longest time without a confirmed write: %s", h.longestGap())
	h.verify()
}
