package plugin

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/replica"
)

func (t *tool) forwardCommand() *cobra.Command {
	var address string
	command := &cobra.Command{
		Use: "forward [CLUSTER]", Short: "Forward a local port to the API servers of a cluster",
		Long: "Forward each connection to a local port to a ready API server of a cluster. kubectl port-forward does\n" +
			"not work, because API servers listen only on the addresses of their pods. Requires permission to exec into the " +
			"pods.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	command.Flags().StringVar(&address, "listen", "127.0.0.1:6443", "Address to listen on")
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.forward(ctx, key, address) })
	return command
}

func (t *tool) forward(ctx context.Context, key client.ObjectKey, address string) error {
	if _, err := t.readyPod(ctx, key); err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	t.note("Forwarding %s to cluster %s. In another terminal:\n  kubectl quorate kubeconfig %s -n %s --write "+
		"--endpoint=https://%s",
		listener.Addr(), key.Name, key.Name, key.Namespace, listener.Addr())
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go t.pass(ctx, key, connection)
	}
}

// pass forwards a connection to a ready API server.
func (t *tool) pass(ctx context.Context, key client.ObjectKey, local net.Conn) {
	defer local.Close()
	pod, err := t.readyPod(ctx, key)
	if err != nil {
		t.note("%v", err)
		return
	}
	remote, err := replica.Dial(ctx, t.config, pod)
	if err != nil {
		t.note("Connect to %s: %v", pod.Name, err)
		return
	}
	defer remote.Close()
	stop := context.AfterFunc(ctx, func() { local.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(remote, local)
		remote.Close()
	}()
	_, _ = io.Copy(local, remote)
}

// readyPod returns a ready pod of the cluster.
func (t *tool) readyPod(ctx context.Context, key client.ObjectKey) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := t.client.List(ctx, &pods, client.InNamespace(key.Namespace),
		client.MatchingLabels{desired.ClusterLabel: key.Name})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if overview.Ready(&pods.Items[i]) {
			return &pods.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no API server of cluster %s in namespace %s is ready", key.Name, key.Namespace)
}
