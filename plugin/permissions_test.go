package plugin

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
)

// TestPermissions runs commands and compares the verbs and resources of their requests with the table in
// docs/kubectl-quorate.md. Users who have exactly the documented permissions would get an error for any other request.
func TestPermissions(t *testing.T) {
	documented := documentedPermissions(t)
	key := client.ObjectKey{Namespace: "default", Name: "demo"}
	for command, run := range map[string]func(context.Context, *tool) error{
		"all": func(ctx context.Context, t *tool) error { _, err := t.cluster(ctx, nil); return err },
		"status": func(ctx context.Context, t *tool) error {
			_, err := t.overview(ctx, key, false, 0)
			return err
		},
		"wait": func(ctx context.Context, t *tool) error {
			return t.awaitCluster(ctx, key, time.Second, "rotated", goals["rotated"])
		},
		"forward": func(ctx context.Context, t *tool) error { _, err := t.readyPod(ctx, key); return err },
		"kubeconfig": func(ctx context.Context, t *tool) error {
			if _, err := t.kubeconfigContent(ctx, key, ""); err != nil {
				return err
			}
			_, err := t.kubeconfigContent(ctx, key, "ci")
			return err
		},
		"backup": func(ctx context.Context, t *tool) error {
			return t.backup(ctx, key, backupOptions{timeout: time.Minute, wait: true})
		},
		"restore": func(ctx context.Context, t *tool) error {
			options := restoreOptions{backup: "monday", specOf: "demo", format: "json", wait: true, timeout: time.Second}
			return t.restore(ctx, client.ObjectKey{Namespace: "default", Name: "copy"}, options)
		},
		"recover": func(ctx context.Context, t *tool) error {
			return t.recover(ctx, key, recoverOptions{backup: "monday", yes: true, wait: true, timeout: time.Second})
		},
		"rotate": func(ctx context.Context, t *tool) error {
			return t.rotate(ctx, key, credentials[0], rotateOptions{wait: true, timeout: time.Second})
		},
	} {
		t.Run(command, func(t *testing.T) {
			used := sets.New[string]()
			tool := &tool{
				streams: streams{out: terminal.NewWriter(&bytes.Buffer{}), err: terminal.NewWriter(&bytes.Buffer{})}, now: time.Now,
				namespace: "default", client: recorded(t, used),
			}
			if err := run(t.Context(), tool); err != nil {
				t.Error(err)
			}
			if missing := used.Difference(documented[command]); missing.Len() > 0 || used.Len() == 0 {
				t.Errorf("used %q; the documentation lacks %q", sets.List(used), sets.List(missing))
			}
		})
	}
}

var (
	permission = regexp.MustCompile("((?:`[a-z]+`(?:, )?)+) of ((?:(?: and |, )?`[a-z/]+`)+)")
	quoted     = regexp.MustCompile("`([a-z/]+)`")
)

// documentedPermissions returns the permissions of each command.
func documentedPermissions(t *testing.T) map[string]sets.Set[string] {
	t.Helper()
	text, err := os.ReadFile("../docs/kubectl-quorate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Permissions")
	all := map[string]sets.Set[string]{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		granted := sets.New[string]()
		for _, match := range permission.FindAllStringSubmatch(cells[2], -1) {
			for _, verb := range quoted.FindAllStringSubmatch(match[1], -1) {
				for _, resource := range quoted.FindAllStringSubmatch(match[2], -1) {
					granted.Insert(verb[1] + " " + resource[1])
				}
			}
		}
		for _, name := range regexp.MustCompile(`[a-z]+`).FindAllString(cells[1], -1) {
			if all[name] == nil {
				all[name] = granted
			}
		}
	}
	return all
}

// recorded returns a client for a hosting cluster with a cluster that has lost its quorum. When objects are watched,
// they reach the states that commands wait for. The client records verbs and resources.
func recorded(t *testing.T, used sets.Set[string]) client.WithWatch {
	t.Helper()
	object := metav1.ObjectMeta{Namespace: "default", Name: "demo", Generation: 1}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: object}
	cluster.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdQuorum, Status: "False", Reason: "QuorumLost"}}
	backup := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "monday"}}
	backup.Spec.ClusterName = "demo"
	backup.Status.Phase = v1alpha1.BackupCompleted
	access := &v1alpha1.ApiServerKubeconfig{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ci"}}
	access.Spec.ClusterRef.Name = "demo"
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"kubeconfig": []byte("x")},
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "demo-0", Labels: map[string]string{"quorate.dev/cluster": "demo"},
		},
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	scheme := overview.Scheme()
	var mu sync.Mutex // commands send several requests at the same time
	record := func(verb string, o runtime.Object) {
		mu.Lock()
		defer mu.Unlock()
		kind, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			t.Error(err)
		}
		kind.Kind = strings.TrimSuffix(kind.Kind, "List")
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		used.Insert(verb + " " + resource.Resource)
	}
	return fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(cluster, backup, access, pod, secret("demo-admin-kubeconfig"), secret("ci-kubeconfig")).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(
				ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
			) error {
				record("get", o)
				return c.Get(ctx, key, o, options...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				record("list", list)
				only := (&client.ListOptions{}).ApplyOptions(options)
				only.FieldSelector = nil // the fake client has no index
				return c.List(ctx, list, only)
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				record("create", o)
				return c.Create(ctx, o, options...)
			},
			Patch: func(
				ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption,
			) error {
				record("patch", o)
				return c.Patch(ctx, o, patch, options...)
			},
			Watch: func(
				_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption,
			) (watch.Interface, error) {
				record("watch", list)
				events := watch.NewFakeWithChanSize(1, false)
				events.Modify(reached(list))
				return events, nil
			},
		}).Build()
}

// reached returns an object in the state that all commands wait for.
func reached(list client.ObjectList) client.Object {
	if _, ok := list.(*v1alpha1.ApiServerBackupList); ok {
		backup := &v1alpha1.ApiServerBackup{}
		backup.Status.Phase = v1alpha1.BackupCompleted
		return backup
	}
	cluster := &v1alpha1.ApiServerCluster{}
	cluster.Status.ReadyReplicas = int32(cluster.ReplicaCount())
	for kind, status := range map[string]metav1.ConditionStatus{
		v1alpha1.Available: "True", v1alpha1.Progressing: "False", v1alpha1.Recovered: "True",
		v1alpha1.CredentialsRotating: "False",
	} {
		cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{Type: kind, Status: status})
	}
	return cluster
}
