package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"quorate.dev/config"
	"quorate.dev/sandbox/management"
)

// grantable are the resources, by kind, that the manifests of the operator's identity and permissions contain.
var grantable = map[string]struct {
	schema.GroupVersionResource
	namespaced bool
}{
	"ServiceAccount":     {schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true},
	"Role":               {rbacResource("roles"), true},
	"RoleBinding":        {rbacResource("rolebindings"), true},
	"ClusterRole":        {rbacResource("clusterroles"), false},
	"ClusterRoleBinding": {rbacResource("clusterrolebindings"), false},
}

func rbacResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: name}
}

// installRBAC applies the operator's namespace, ServiceAccount and roles. The operator of a sandbox thereby has the
// same permissions as one that is installed on a cluster.
func installRBAC(ctx context.Context, client dynamic.Interface) error {
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": management.OperatorNamespace},
	}}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := client.Resource(namespaces).Apply(ctx, namespace.GetName(), namespace, applyOptions()); err != nil {
		return fmt.Errorf("install namespace %s: %w", namespace.GetName(), err)
	}
	objects, err := rbacObjects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		resource := grantable[object.GetKind()]
		var api dynamic.ResourceInterface = client.Resource(resource.GroupVersionResource)
		if resource.namespaced {
			api = client.Resource(resource.GroupVersionResource).Namespace(object.GetNamespace())
		}
		if _, err := api.Apply(ctx, object.GetName(), object, applyOptions()); err != nil {
			return fmt.Errorf("install %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// rbacObjects returns the objects of config.RBAC. Namespaced objects without a namespace get the operator's namespace.
func rbacObjects() ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := fs.WalkDir(config.RBAC, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := config.RBAC.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("decode %s: %w", path, err)
			}
			if grantable[object.GetKind()].namespaced && object.GetNamespace() == "" {
				object.SetNamespace(management.OperatorNamespace)
			}
			objects = append(objects, object)
		}
	})
	return objects, err
}
