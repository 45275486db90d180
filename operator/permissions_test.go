package operator

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/permissions"
	"quorate.dev/test/upstream"
)

// audit returns the path of an audit log and the flags that make an API server write it.
func audit(t *testing.T) (file string, flags []string) {
	t.Helper()
	directory := t.TempDir()
	file, policy := filepath.Join(directory, "audit.log"), filepath.Join(directory, "policy.yaml")
	const text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, []string{"--audit-log-path=" + file, "--audit-policy-file=" + policy}
}

// TestPermissions covers what end-to-end tests do not: informers of a server without WatchList, objects whose labels
// were removed, companions, schedules, and permissions that admission checks.
func TestPermissions(t *testing.T) {
	upstream.NeedsTime(t)
	file, flags := audit(t)
	e := startServer(t, "../config/crd", "default", append(flags, "--feature-gates=WatchList=false",
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement")...)
	e.install("../manifests/install.yaml")
	e.install("../manifests/extension.yaml")
	address := freeAddress(t)
	e.operate([]string{"--pod-namespace=quorate-system", "--metrics-bind-address=" + address})
	if err := e.create("demo", v1alpha1.ApiServerClusterSpec{}); err != nil {
		t.Fatal(err)
	}
	e.await("demo", "bootstrap three replicas", settled(3, 3))
	e.checkMetrics(address)
	e.useCompanion()
	e.removeLabels()
	e.changeService()
	e.useKubeconfig()
	e.useSchedule()
	e.changeImage()
	e.checkAdmission()
	permissions.Check(t, file)
}

// operatorClient returns a client with the operator's permissions.
func (e *environment) operatorClient() client.Client {
	e.t.Helper()
	config := rest.CopyConfig(e.admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: operatorUser}
	operator, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		e.t.Fatal(err)
	}
	return operator
}

// apply creates an object.
func (e *environment) apply(object client.Object) {
	e.t.Helper()
	if err := e.client.Create(e.t.Context(), object); err != nil {
		e.t.Fatal(err)
	}
}

// until waits for a condition.
func (e *environment) until(what string, holds func() bool) {
	e.t.Helper()
	if !e.holdsWithin(time.Minute, holds) {
		e.t.Fatalf("timed out waiting for %s", what)
	}
}

// holdsWithin reports whether a condition holds before a time has passed.
func (e *environment) holdsWithin(timeout time.Duration, holds func() bool) bool {
	const interval = 20 * time.Millisecond
	err := wait.PollUntilContextTimeout(e.t.Context(), interval, timeout, true, func(context.Context) (bool, error) {
		return holds(), nil
	})
	return err == nil
}

// read reads an object of the clusters' namespace and reports whether it exists.
func (e *environment) read(name string, into client.Object) bool {
	e.t.Helper()
	err := e.client.Get(e.t.Context(), client.ObjectKey{Namespace: e.namespace, Name: name}, into)
	if client.IgnoreNotFound(err) != nil {
		e.t.Fatal(err)
	}
	return err == nil
}

// useCompanion creates and changes the Deployment of a companion.
func (e *environment) useCompanion() {
	e.t.Helper()
	const image = "registry.example/kube-scheduler:v1.36.3"
	change := func(replicas int32) func(*v1alpha1.ApiServerClusterSpec) {
		return func(s *v1alpha1.ApiServerClusterSpec) {
			s.Companions = v1alpha1.Companions{KubeScheduler: &v1alpha1.Companion{Image: image, Replicas: ptr.To(replicas)}}
		}
	}
	deployment := &appsv1.Deployment{}
	for _, replicas := range []int32{1, 2} {
		e.change("demo", change(replicas))
		e.until("the Deployment of the scheduler", func() bool {
			return e.read("demo-kube-scheduler", deployment) && *deployment.Spec.Replicas == replicas
		})
	}
	e.removeLabelsOf("demo-kube-scheduler", deployment)
	e.change("demo", func(s *v1alpha1.ApiServerClusterSpec) { s.Companions = v1alpha1.Companions{} })
	e.until("no Deployment", func() bool { return !e.read("demo-kube-scheduler", deployment) })
}

// removeLabels removes the labels of objects, which hides them from the operator's informers.
func (e *environment) removeLabels() {
	e.t.Helper()
	e.removeLabelsOf("demo", &corev1.Service{})
	e.removeLabelsOf("demo", &policyv1.PodDisruptionBudget{})
	e.removeLabelsOf("demo-members", &networkingv1.NetworkPolicy{})
	e.removeLabelsOf("demo-serving", &corev1.Secret{})
	e.removeLabelsOf(e.get("demo").Status.Members[0].Name, &corev1.PersistentVolumeClaim{})
	e.await("demo", "labels", settled(3, 3))
}

func (e *environment) removeLabelsOf(name string, object client.Object) {
	e.t.Helper()
	if !e.read(name, object) {
		e.t.Fatalf("there is no %T %s", object, name)
	}
	labels := object.GetLabels()
	if err := e.client.Patch(
		e.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":null}}`)),
	); err != nil {
		e.t.Fatal(err)
	}
	e.until("labels of "+name, func() bool {
		return e.read(name, object) && object.GetLabels()[desired.ManagedByLabel] == labels[desired.ManagedByLabel]
	})
}

func (e *environment) changeService() {
	e.t.Helper()
	e.change("demo", func(s *v1alpha1.ApiServerClusterSpec) {
		s.Service.Annotations = map[string]string{"example.com/name": "demo"}
	})
	service := &corev1.Service{}
	e.until("the annotation of the Service", func() bool {
		return e.read("demo", service) && service.Annotations["example.com/name"] == "demo"
	})
	e.editService("demo",
		`{"spec": {"type": "NodePort", "selector": {"app": "other"}, "ports": [{"name": "https", "port": 443}]}}`)
	e.editService("demo", `{"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/24"]}}`)
	e.editService("demo-members",
		`{"spec": {"publishNotReadyAddresses": false, "ports": [{"name": "other", "port": 2380}]}}`)
	e.editService("demo-members",
		`{"spec": {"type": "ExternalName", "externalName": "example.org", "clusterIP": null, "clusterIPs": null}}`)
}

// editService edits a Service as a user could, and waits until the operator has restored it and makes no further
// changes.
func (e *environment) editService(name, patch string) {
	e.t.Helper()
	service, restored := &corev1.Service{}, &corev1.Service{}
	if !e.read(name, service) {
		e.t.Fatalf("there is no Service %s", name)
	}
	edited := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	if err := e.client.Patch(e.t.Context(), edited, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		e.t.Fatal(err)
	}
	e.until("Service "+name+" after "+patch, func() bool {
		return e.read(name, restored) && restored.ResourceVersion != edited.ResourceVersion
	})
	if !reflect.DeepEqual(restored.Spec, service.Spec) {
		e.t.Errorf("after %s: %+v, want %+v", patch, restored.Spec, service.Spec)
	}
	e.change("demo", func(s *v1alpha1.ApiServerClusterSpec) { // causes another reconciliation
		s.Service.Annotations = map[string]string{"example.com/name": "demo", "example.com/edit": edited.ResourceVersion}
	})
	e.until("the annotation of the Service", func() bool {
		return e.read("demo", service) && service.Annotations["example.com/edit"] == edited.ResourceVersion
	})
	if version := restored.ResourceVersion; name != "demo" &&
		(!e.read(name, restored) || restored.ResourceVersion != version) {
		e.t.Errorf("the operator still changes Service %s", name)
	}
}

func (e *environment) useKubeconfig() {
	e.t.Helper()
	kubeconfig := &v1alpha1.ApiServerKubeconfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "viewer"},
		Spec:       v1alpha1.ApiServerKubeconfigSpec{ClusterRef: corev1.LocalObjectReference{Name: "demo"}, User: "viewer"},
	}
	e.apply(kubeconfig)
	e.until("the kubeconfig", func() bool {
		return e.read("viewer", kubeconfig) && meta.IsStatusConditionTrue(kubeconfig.Status.Conditions, "Ready")
	})
}

// useSchedule creates a schedule with an expired backup.
func (e *environment) useSchedule() {
	e.t.Helper()
	labels := map[string]string{desired.ScheduleLabel: "yearly"}
	destination := v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}}
	expired := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "expired", Labels: labels},
		Spec:       v1alpha1.ApiServerBackupSpec{ClusterName: "none", Destination: destination},
	}
	e.apply(expired)
	e.until("the finalizer", func() bool { return e.read("expired", expired) && len(expired.Finalizers) > 0 })
	failed := []byte(`{"status":{"phase":"Failed","completionTime":"2026-01-01T00:00:00Z"}}`)
	if err := e.client.Status().Patch(e.t.Context(), expired, client.RawPatch(types.MergePatchType, failed)); err != nil {
		e.t.Fatal(err)
	}
	e.apply(&v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "yearly"},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 0 1 1 *", FailedBackupsHistoryLimit: ptr.To[int32](0),
			Template: v1alpha1.BackupTemplate(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: destination}),
		},
	})
	e.until("the end of the expired backup", func() bool { return !e.read("expired", expired) })
}

// changeImage changes the image. The operator takes a backup first.
func (e *environment) changeImage() {
	e.t.Helper()
	e.change("demo", func(s *v1alpha1.ApiServerClusterSpec) {
		s.Image = "quorate:other"
		s.Maintenance.UpgradeBackup = v1alpha1.UpgradeBackup{
			Policy:      v1alpha1.BackupAlways,
			Destination: &v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
		}
	})
	backups := &v1alpha1.ApiServerBackupList{}
	e.until("a backup before the upgrade", func() bool {
		if err := e.client.List(e.t.Context(), backups, client.InNamespace(e.namespace)); err != nil {
			e.t.Fatal(err)
		}
		return len(backups.Items) > 0
	})
}

// checkAdmission checks permissions that the audit log does not show, because admission checks them for requests about
// other resources: without them, the operator cannot create objects that block the deletion of their owner, nor bind
// roles.
func (e *environment) checkAdmission() {
	e.t.Helper()
	operator := e.operatorClient()
	attempts := map[string]client.Object{
		"bind clusterroles": &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "attempt"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		},
		"bind clusterroles of extensions": &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "attempt"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: desired.ExtensionRole},
		},
		"bind roles": &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "attempt"},
			RoleRef: rbacv1.RoleRef{
				APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader",
			},
		},
	}
	for _, kind := range []string{"ApiServerCluster", "ApiServerKubeconfig", "ApiServerBackup"} {
		owner := metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: "owner", UID: "1", BlockOwnerDeletion: ptr.To(true),
		}
		attempts["own by "+kind] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.namespace, Name: "attempt", OwnerReferences: []metav1.OwnerReference{owner},
		}}
	}
	create := func(object client.Object) error {
		return operator.Create(e.t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
	}
	for name, object := range attempts {
		if err := create(object); err != nil {
			e.t.Errorf("%s: %v", name, err)
		}
	}
	e.removeRules()
	for name, object := range attempts {
		e.until("refusal: "+name, func() bool { return apierrors.IsForbidden(create(object)) })
	}
}

// removeRules removes the rules for finalizers and the verb bind from the operator's roles. Users may also bind roles
// whose permissions they have: those of system:auth-delegator are the permissions for metrics, and those of
// extension-apiserver-authentication-reader are for ConfigMaps, which the operator of a namespaced install cannot read
// there.
func (e *environment) removeRules() {
	e.t.Helper()
	metrics := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: metricsName}}
	if err := e.client.Delete(e.t.Context(), metrics); err != nil {
		e.t.Fatal(err)
	}
	unused := func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.Verbs, "bind") || slices.Contains(rule.Resources, "configmaps") ||
			slices.ContainsFunc(rule.Resources, func(r string) bool { return strings.HasSuffix(r, "/finalizers") })
	}
	for _, name := range []string{"quorate-operator", "quorate-operator-extension"} {
		role := &rbacv1.ClusterRole{}
		if err := e.client.Get(e.t.Context(), client.ObjectKey{Name: name}, role); err != nil {
			e.t.Fatal(err)
		}
		role.Rules = slices.DeleteFunc(role.Rules, unused)
		if err := e.client.Update(e.t.Context(), role); err != nil {
			e.t.Fatal(err)
		}
	}
	role := &rbacv1.Role{}
	if err := e.client.Get(
		e.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "quorate-operator-extension"}, role,
	); err != nil {
		e.t.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, unused)
	if err := e.client.Update(e.t.Context(), role); err != nil {
		e.t.Fatal(err)
	}
}
