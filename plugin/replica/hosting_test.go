package replica

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/operator/desired"
)

// hostingCluster is an API server of a hosting cluster that has Secrets by path, and refuses all other requests.
func hostingCluster(t *testing.T, secrets map[string]*corev1.Secret) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if secret, ok := secrets[r.URL.Path]; ok && r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(secret)
			return
		}
		refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "pods/exec"}, "demo-0", nil).Status()
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(refusal)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// kubeconfig returns the Secret with the administrator's kubeconfig.
func kubeconfig(t *testing.T, host, serverName string) *corev1.Secret {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: host, TLSServerName: serverName}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "secret"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return secret(content)
}

func secret(content []byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		Data:     map[string][]byte{desired.KubeconfigKey: content},
	}
}

// TestNewSampler reads the administrator's kubeconfig. Connections go to the addresses of pods, so that the name of the
// certificate is the name in the kubeconfig.
func TestNewSampler(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/namespaces/n/secrets/demo-admin-kubeconfig"
	for name, test := range map[string]struct {
		secret     *corev1.Secret
		serverName string // that is verified
		err        string // part of the error; empty: none
	}{
		"name of the URL":         {kubeconfig(t, "https://demo.n.svc:6443", ""), "demo.n.svc", ""},
		"name of the certificate": {kubeconfig(t, "https://192.0.2.1:6443", "demo.n.svc"), "demo.n.svc", ""},
		"not readable":            {nil, "", "read the administrator's kubeconfig: "},
		"no kubeconfig":           {secret([]byte("{")), "", "parse the kubeconfig in Secret demo-admin-kubeconfig: "},
		"no current context":      {secret(nil), "", "parse the kubeconfig in Secret demo-admin-kubeconfig: "},
		"no URL": {
			kubeconfig(t, "https://[::1", ""), "", "parse the kubeconfig in Secret demo-admin-kubeconfig: ",
		},
	} {
		secrets := map[string]*corev1.Secret{path: test.secret}
		if test.secret == nil {
			delete(secrets, path)
		}
		s, err := NewSampler(t.Context(), hostingCluster(t, secrets), "n", "demo")
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: got %v, want %s", name, err, test.err)
			}
			continue
		}
		if err != nil || s.admin.ServerName != test.serverName || s.admin.Timeout != timeout ||
			s.admin.BearerToken != "secret" {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
	if _, err := NewSampler(t.Context(), &rest.Config{Host: "https://[::1"}, "n", "demo"); err == nil {
		t.Error("no error with an address of the hosting cluster that is no URL")
	}
}

// remotePod returns a pod that only commands in it can reach.
func remotePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "demo-0"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "apiserver"}}},
		Status:     corev1.PodStatus{PodIP: "192.0.2.7", Phase: corev1.PodRunning},
	}
}

// TestDialThroughTheHostingCluster: pods with other addresses are reached by a command that runs in them. The user
// learns why the hosting cluster refuses to run it.
func TestDialThroughTheHostingCluster(t *testing.T) {
	t.Parallel()
	host := hostingCluster(t, nil)
	pod := remotePod()
	connection, err := Dial(t.Context(), host, pod)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(connection); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("read: %v", err)
	}
	if _, err := connection.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("write: %v", err)
	}
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(t.Context(), &rest.Config{Host: "https://[::1"}, pod); err == nil {
		t.Error("no error with an address of the hosting cluster that is no URL")
	}
	pod.Status.Phase = corev1.PodPending
	if _, err := Dial(t.Context(), host, pod); err == nil || err.Error() != "pod demo-0 is not running: Pending" {
		t.Errorf("a pod that is not running: %v", err)
	}
}

// TestClosedTunnel: after this side has closed the connection, its reads fail, even while the hosting cluster does not
// respond.
func TestClosedTunnel(t *testing.T) {
	t.Parallel()
	requested, respond := make(chan struct{}, 10), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		requested <- struct{}{}
		<-respond
	}))
	t.Cleanup(server.Close)
	connection, err := Dial(t.Context(), &rest.Config{Host: server.URL}, remotePod())
	if err != nil {
		t.Fatal(err)
	}
	<-requested
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
	if n, err := connection.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes of a closed connection", n)
	}
	close(respond)
	<-connection.(*tunnel).done
}

// TestRefusedMetrics: the error has the status and the beginning of the text.
func TestRefusedMetrics(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "Unauthorized", strings.Repeat(".", 1000))
	}))
	t.Cleanup(server.Close)
	_, err := read(t.Context(), server.Client(), server.URL)
	want := "read /metrics: 401 Unauthorized: Unauthorized" + strings.Repeat(".", 200-len("Unauthorized"))
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
