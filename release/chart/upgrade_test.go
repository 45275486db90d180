package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// release is a release of the chart on an API server.
type release struct {
	t      *testing.T
	client client.Client
}

// startServer starts an API server for Helm and returns a client.
func startServer(t *testing.T) *release {
	t.Helper()
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(directory)
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	kubeconfig := filepath.Join(directory, "kubeconfig")
	if err := upstream.WriteKubeconfig(kubeconfig, server.Admin); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, apiextensions.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(server.Admin, client.Options{Scheme: types})
	if err != nil {
		t.Fatal(err)
	}
	return &release{t: t, client: c}
}

// columns returns the names of the printer columns of ApiServerClusters.
func (r *release) columns() string {
	r.t.Helper()
	definition := &apiextensions.CustomResourceDefinition{}
	if err := r.client.Get(
		r.t.Context(), client.ObjectKey{Name: "apiserverclusters.quorate.dev"}, definition,
	); err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, column := range definition.Spec.Versions[0].AdditionalPrinterColumns {
		names = append(names, column.Name)
	}
	return strings.Join(names, " ")
}

func (r *release) helm(arguments ...string) {
	r.t.Helper()
	if output, ok := helm(r.t, append(arguments, "--namespace=quorate-system")...); !ok {
		r.t.Fatalf("helm %s: %s", arguments[0], output)
	}
}

// TestUpgrade installs the chart with a former definition and upgrades it: Helm upgrades the definitions, because they
// are templates. Uninstalling keeps the definitions and their objects, and deletes everything else.
func TestUpgrade(t *testing.T) {
	upstream.NeedsTime(t)
	r := startServer(t)
	chart, former := newChart(t), newChart(t)
	const definition = "templates/customresourcedefinition-apiserverclusters-quorate-dev.yaml"
	text, err := os.ReadFile(filepath.Join(chart, definition))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(
		filepath.Join(former, definition), []byte(strings.ReplaceAll(string(text), "name: Voters\n", "name: Former\n")),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	r.helm("install", "quorate", former, "--create-namespace")
	if columns := r.columns(); !strings.Contains(columns, "Former") {
		t.Fatalf("the former definition has the columns %s", columns)
	}
	cluster := &v1alpha1.ApiServerCluster{}
	cluster.Namespace, cluster.Name = "default", "demo"
	if err := r.client.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	r.helm("upgrade", "quorate", chart)
	if columns := r.columns(); !strings.Contains(columns, "Voters") || strings.Contains(columns, "Former") {
		t.Errorf("the upgrade left the definition with the columns %s", columns)
	}
	r.helm("uninstall", "quorate")
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
		t.Errorf("an ApiServerCluster after uninstalling: %v", err)
	}
	for _, list := range []client.ObjectList{
		&corev1.ServiceAccountList{}, &corev1.ServiceList{}, &rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{},
		&rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
	} {
		if err := r.client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for _, name := range quorateNames(t, list) {
			t.Errorf("uninstalling left %T with %s", list, name)
		}
	}
	r.helm("install", "quorate", chart) // adopts the definitions
}

// quorateNames returns the names of the objects of a list that the chart creates.
func quorateNames(t *testing.T, list client.ObjectList) []string {
	t.Helper()
	var names []string
	err := meta.EachListItem(list, func(object runtime.Object) error {
		accessor, err := meta.Accessor(object)
		if err == nil && strings.HasPrefix(accessor.GetName(), "quorate") {
			names = append(names, accessor.GetName())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
