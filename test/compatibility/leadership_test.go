package compatibility

import (
	"context"
	"net/http"
	"path/filepath"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"

	"quorate.dev/test/upstream"
)

// TestCoordinatedLeaderElection runs client-go's candidates of two versions for a lease: the older one is elected.
func TestCoordinatedLeaderElection(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	process, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Arguments: []string{
			"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
			"--coordinated-leadership-lease-duration=3s", "--coordinated-leadership-renew-deadline=2s",
			"--coordinated-leadership-retry-period=500ms",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, "quorate", process.Admin)
	client, err := kubernetes.NewForConfig(rest.CopyConfig(process.Admin))
	if err != nil {
		t.Fatal(err)
	}
	const name = "component"
	for candidate, version := range map[string]string{"old": "1.35.0", "new": "1.36.0"} {
		run, _, err := leaderelection.NewCandidate(client, metav1.NamespaceDefault, candidate, name, version, version,
			coordinationv1.OldestEmulationVersion)
		if err != nil {
			t.Fatal(err)
		}
		go run.Run(t.Context())
	}
	var elected *coordinationv1.Lease
	err = wait.PollUntilContextTimeout(t.Context(), pollInterval, 3*patience, true, func(
		ctx context.Context,
	) (bool, error) {
		elected, err = client.CoordinationV1().Leases(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && elected.Spec.HolderIdentity != nil && *elected.Spec.HolderIdentity == "old", err
	})
	if err != nil {
		t.Fatalf("%v: the lease is %v", err, elected)
	}
	const hook = "/readyz/poststarthook/start-kube-apiserver-coordinated-leader-election-controller"
	if status, answer := s.answer(t, hook, "*/*"); status != http.StatusOK {
		t.Errorf("%s: %d %s", hook, status, answer)
	}
}
