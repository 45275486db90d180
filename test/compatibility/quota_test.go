package compatibility

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"quorate.dev/test/upstream"
)

// TestQuotaUnderConcurrency creates more objects than a quota allows, from many clients concurrently. Exactly the
// allowed number must be stored, and the status of the quota must agree.
func TestQuotaUnderConcurrency(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	const clients, each, room = 12, 8, 20
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	server.Admin.QPS = -1
	core := kubernetes.NewForConfigOrDie(server.Admin).CoreV1()
	makeQuota(t, core.ResourceQuotas("default"), room)

	var created, refused atomic.Int32
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for i := range each {
				_, err := core.ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("q-%d-%d", client, i), Labels: map[string]string{"counted": ""}},
				}, metav1.CreateOptions{})
				switch {
				case err == nil:
					created.Add(1)
				case apierrors.IsForbidden(err):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	stored, err := core.ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "counted"})
	if err != nil {
		t.Fatal(err)
	}
	if created.Load() != room || refused.Load() != clients*each-room || len(stored.Items) != room {
		t.Errorf("%d created, %d refused, %d stored; there was room for %d", created.Load(),
			refused.Load(), len(stored.Items), room)
	}
	quota, err := core.ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if used := quota.Status.Used["count/configmaps"]; used.Value() != room {
		t.Errorf("the quota says that %s are used", used.String())
	}
}

// makeQuota creates a quota and sets its status to no usage, as its controller would.
func makeQuota(t *testing.T, client corev1client.ResourceQuotaInterface, room int64) {
	t.Helper()
	hard := corev1.ResourceList{"count/configmaps": *resource.NewQuantity(room, resource.DecimalSI)}
	quota, err := client.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{
		Hard: hard, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")},
	}
	if _, err := client.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A consistent read waits for the cache, which admission also reads.
	if _, err := client.Get(t.Context(), "q", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}
