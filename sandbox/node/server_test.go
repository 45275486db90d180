package node

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/apiserver"
	"quorate.dev/sandbox/management"
)

// startServer runs a management API server in this process. It returns a client and the configuration of the kubelet
// API.
func startServer(t *testing.T) (kubernetes.Interface, Kubelet) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped under -short: apiserver.Run sets the loggers of the process, and pods are processes")
	}
	plane, err := management.New(t.TempDir(), network, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := plane.WriteKubeconfig(file); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	args := slices.DeleteFunc(plane.Args(), func(arg string) bool { return strings.HasPrefix(arg, "--controllers=") })
	args = append(args, "--controllers=serviceaccount") // pods need a service account; other controllers would interfere
	// t.Context() ends before cleanups run, and the API server must end after the agent.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- apiserver.Run(ctx, args) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("API server: %v", err)
		}
	})
	client := kubernetes.NewForConfigOrDie(config)
	awaitServer(t, client, ended)
	answers, err := plane.KubeletTLS()
	if err != nil {
		t.Fatal(err)
	}
	return client, Kubelet{TLS: answers, Client: management.KubeletClient}
}

// awaitServer waits until pods can be created.
func awaitServer(t *testing.T, client *kubernetes.Clientset, ended <-chan error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if _, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
			return
		}
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("the API server did not start: %v", err)
		}
	}
	t.Fatal("the API server is not ready")
}

func parse(address string) netip.Addr {
	parsed, _ := netip.ParseAddr(address)
	return parsed
}
