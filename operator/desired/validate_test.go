package desired

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

// TestInvalidWindowsAreNamed checks that an invalid maintenance window leads to an error that names it, and does not
// hide the others.
func TestInvalidWindowsAreNamed(t *testing.T) {
	hours := func(h int) metav1.Duration { return metav1.Duration{Duration: time.Duration(h) * time.Hour} }
	cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) {
		s.Maintenance.Windows = []v1alpha1.MaintenanceWindow{
			{Schedule: "0 2 * * SAT", TimeZone: "Europe/Berlin", Duration: hours(4)},
			{Schedule: "0 2 * *", Duration: hours(4)},
			{Schedule: "@daily", TimeZone: "Europe/Atlantis", Duration: hours(4)},
			{Schedule: "@every 1h", Duration: hours(4)},
			{Schedule: "@daily", Duration: metav1.Duration{Duration: 9 * time.Minute}},
			{Schedule: "@weekly", Duration: hours(1)},
		}
	})
	windows, err := Windows(cluster)
	if err == nil || Validate(cluster, nil) == nil {
		t.Fatal("got no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		`spec.maintenance.windows[1]: schedule "0 2 * *": `,
		`spec.maintenance.windows[2]: timeZone "Europe/Atlantis" is unknown`,
		`spec.maintenance.windows[3]: schedule "@every 1h": intervals are not supported`,
		"spec.maintenance.windows[4]: duration 9m0s must be at least 10m0s",
	}
	for i := range want {
		if len(lines) != len(want) || !strings.HasPrefix(lines[i], want[i]) {
			t.Fatalf("got\n%s\nwant\n%s", err, strings.Join(want, "\n"))
		}
	}
	if len(windows) != 2 || windows[0].Duration != 4*time.Hour || windows[1].Duration != time.Hour {
		t.Fatalf("got windows %+v", windows)
	}
	// 2026-01-03 is a Saturday. In January it is 2:00 in Berlin at 1:00 UTC.
	if got, want := windows[0].Starts.Next(epoch()), time.Date(2026, 1, 3, 1, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("the first window opens at %s, want %s", got, want)
	}
}

// TestTokenOverlap checks that a replaced service-account key is trusted until the last of its tokens has expired.
func TestTokenOverlap(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		args    map[string]string
		overlap time.Duration
		want    time.Duration
	}{
		"default":     {nil, 0, year},
		"in the spec": {nil, time.Hour, time.Hour},
		"long lifetime": {
			map[string]string{"service-account-max-token-expiration": "10000h"}, 0, 10000 * time.Hour,
		},
		"short, but pods' is a year": {map[string]string{"service-account-max-token-expiration": "2h"}, 0, year},
		"short": {map[string]string{
			"service-account-max-token-expiration": "2h", "service-account-extend-token-expiration": "false",
		}, 0, 2 * time.Hour},
		"no limit": {map[string]string{"service-account-extend-token-expiration": "false"}, 0, year},
	} {
		cluster := withArgs(c.args)
		if c.overlap > 0 {
			cluster.Spec.Certificates.ServiceAccountKeys.Overlap = &metav1.Duration{Duration: c.overlap}
		}
		if got := TokenOverlap(cluster); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestChangesThatLoseData checks changes that are only errors for a cluster that runs already: they would make it
// continue without its data.
func TestChangesThatLoseData(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*v1alpha1.ApiServerCluster)
		want string // part of the error; "": valid
	}{
		"from external to embedded": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Replicas = 3 }, "cannot be switched from external to embedded",
		},
		"external without endpoints": {func(c *v1alpha1.ApiServerCluster) {
			external(&c.Spec)
			c.Spec.Etcd.External.Endpoints = nil
		}, "spec.etcd.external.endpoints must not be empty"},
		"hibernated": {func(c *v1alpha1.ApiServerCluster) { c.Spec.Replicas = ptr.To[int32](0) }, ""},
		"restore removed before it was completed": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Restore = &v1alpha1.RestoreStatus{} },
			"spec.restore was removed before",
		},
		"restore removed after it was completed": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Restore = &v1alpha1.RestoreStatus{Completed: true} }, "",
		},
		"negative size": {
			func(c *v1alpha1.ApiServerCluster) { c.Spec.Storage.Size = resource.MustParse("-1Gi") },
			"spec.storage.size must be positive",
		},
		"paused until an unknown time": {
			func(c *v1alpha1.ApiServerCluster) {
				c.Annotations = map[string]string{v1alpha1.PausedUntilAnnotation: "tomorrow"}
			}, v1alpha1.PausedUntilAnnotation,
		},
	} {
		cluster := demo(nil)
		c.edit(cluster)
		err := Validate(cluster, []corev1.PersistentVolumeClaim{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestDamagedRecord checks the errors for a record that a user has edited. The cluster must not adopt volumes of which
// it does not know the members.
func TestDamagedRecord(t *testing.T) {
	for content, want := range map[string]string{
		"spec: [":                "key cluster.yaml of Secret demo-retained: ",
		"":                       "key cluster.yaml of Secret demo-retained has no cluster",
		"metadata: {name: demo}": "key cluster.yaml of Secret demo-retained has no cluster",
	} {
		data := map[string][]byte{recordClusterKey: []byte(content)}
		stored := secret(demo(nil), RecordSecret, corev1.SecretTypeOpaque, data)
		if _, err := ParseRecord(stored); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", content, err, want)
		}
	}
}

// TestProtectedFields checks the comparison of a patched pod with the pod before, which finds changes of the operator's
// fields also if the check of the patch itself misses them.
func TestProtectedFields(t *testing.T) {
	before, err := Pod(demo(nil), "quorate:1", replicas["initial member"].replica, "hash")
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*corev1.Pod){
		"": func(p *corev1.Pod) {
			p.Labels["team"], p.Spec.ServiceAccountName = "a", "logs"
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "more"})
			server := &p.Spec.Containers[0]
			server.Env = append(server.Env, corev1.EnvVar{Name: "GOGC", Value: "50"})
			server.VolumeMounts = append(server.VolumeMounts, corev1.VolumeMount{Name: "more", MountPath: "/more"})
			p.Spec.Containers = append([]corev1.Container{{Name: "shipper"}}, p.Spec.Containers...)
		},
		"metadata: quorate.dev/cluster is set": func(p *corev1.Pod) { delete(p.Labels, ClusterLabel) },
		"metadata: quorate.dev/server-hash is set": func(p *corev1.Pod) {
			p.Annotations[ServerHashAnnotation] = "other"
		},
		"metadata, except for labels and annotations, is set": func(p *corev1.Pod) {
			p.Finalizers = []string{"example.com/keep"}
		},
		"spec.hostname is set":             func(p *corev1.Pod) { p.Spec.Hostname = "other" },
		"spec.activeDeadlineSeconds would": func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) },
		"spec.volumes[data] is set":        func(p *corev1.Pod) { p.Spec.Volumes[2].VolumeSource = corev1.VolumeSource{} },
		"spec.volumes[tmp] is set": func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes[:1], p.Spec.Volumes[2:]...)
		},
		"spec.containers[apiserver] is set": func(p *corev1.Pod) {
			p.Spec.Containers[0].Name = "other"
		},
		"spec.containers[apiserver].image is set": func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" },
		"spec.containers[apiserver].stdin is set": func(p *corev1.Pod) { p.Spec.Containers[0].Stdin = true },
		"spec.containers[apiserver].livenessProbe is set": func(p *corev1.Pod) {
			p.Spec.Containers[0].LivenessProbe = nil
		},
		"spec.containers[apiserver].env[POD_IP] is set": func(p *corev1.Pod) {
			p.Spec.Containers[0].Env[0].ValueFrom = nil
		},
		"spec.containers[apiserver].volumeMounts[/var/lib/quorate/etcd]: the directory is set": func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{
				Name: "more", MountPath: "/var/lib/quorate/etcd",
			})
		},
		"spec.containers[apiserver].volumeMounts[/tmp] is set": func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts[1].SubPath = "other"
		},
	} {
		after := before.DeepCopy()
		change(after)
		err := checkProtected(before, after)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
