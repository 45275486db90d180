package endpoints

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func demoPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "demo"}},
		Spec: corev1.PodSpec{
			NodeName: "sandbox",
			Containers: []corev1.Container{{
				Name: "apiserver", Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: 6443}},
			}},
		},
		Status: corev1.PodStatus{
			PodIP: "127.9.64.1", Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func demoService(publish bool) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "demo"}, PublishNotReadyAddresses: publish,
			Ports: []corev1.ServicePort{
				{Name: "https", Port: 443, TargetPort: intstr.FromString("https")},
				{Name: "metrics", Port: 9090},
				{Name: "none", Port: 1, TargetPort: intstr.FromString("missing")},
			},
		},
	}
}

func TestOf(t *testing.T) {
	notReady := func(pod *corev1.Pod) { pod.Status.Conditions[0].Status = corev1.ConditionFalse }
	leaving := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }
	tests := []struct {
		name    string
		publish bool
		change  func(*corev1.Pod)
		count   int
		ready   bool
	}{
		{name: "ready", count: 1, ready: true},
		{name: "not ready", change: notReady, count: 1},
		{name: "not ready, published", publish: true, change: notReady, count: 1, ready: true},
		{name: "leaving", change: leaving, count: 1},
		{name: "without address", change: func(pod *corev1.Pod) { pod.Status.PodIP = "" }},
		{name: "ended", change: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }},
		{name: "other labels", change: func(pod *corev1.Pod) { pod.Labels = nil }},
		{name: "other namespace", change: func(pod *corev1.Pod) { pod.Namespace = "team" }},
	}
	for _, test := range tests {
		got := Of(demoService(test.publish), []*corev1.Pod{demoPod("demo-0", test.change)})
		if len(got) != test.count {
			t.Errorf("%s: %d endpoints, want %d", test.name, len(got), test.count)
		} else if test.count == 1 && got[0].Ready != test.ready {
			t.Errorf("%s: ready %t, want %t", test.name, got[0].Ready, test.ready)
		}
	}
}

func TestPorts(t *testing.T) {
	got := Of(demoService(false), []*corev1.Pod{demoPod("demo-0", nil)})[0].Ports
	want := []Port{
		{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, Target: 6443},
		{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090, Target: 9090},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestServiceWithoutSelectorHasNoEndpoints(t *testing.T) {
	service := demoService(false)
	service.Spec.Selector = nil
	if got := Of(service, []*corev1.Pod{demoPod("demo-0", nil)}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestTableNotifiesSubscribersAndRendersSlices(t *testing.T) {
	table := NewTable()
	changed := table.Subscribe()
	table.Update([]*corev1.Service{demoService(false)}, []*corev1.Pod{demoPod("demo-1", nil), demoPod("demo-0", nil)})
	<-changed
	entry, ok := table.Get("default", "demo")
	if !ok || len(table.Entries()) != 1 {
		t.Fatal("the Service is not in the table")
	}
	slice := Slice(entry)
	if got := slice.Endpoints[0].Addresses[0]; got != "127-9-64-1.default.pod.cluster.local" {
		t.Errorf("address %q", got)
	}
	if slice.Endpoints[0].TargetRef.Name != "demo-0" || !*slice.Endpoints[1].Conditions.Ready ||
		*slice.Ports[0].Port != 6443 {
		t.Errorf("got %+v", slice)
	}
}
