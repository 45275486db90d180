package compatibility

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// formerPolicy is an RBAC policy of a former release, with changes of an administrator, by key.
func formerPolicy() map[string]runtime.Object {
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{resource},
		}}
	}
	role := func(name string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
		role := &rbacv1.ClusterRole{ObjectMeta: former(name), Rules: rules}
		role.TypeMeta = metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}
		return role
	}
	binding := func(name, of string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: former(name), Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: of},
		}
		binding.TypeMeta = metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}
		return binding
	}
	user := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}
	authenticated := rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:authenticated"}
	narrowed := binding("system:discovery", "system:discovery", user, authenticated)
	narrowed.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	admin := role("admin", rule("admins"))
	admin.Labels, admin.Finalizers = map[string]string{"kept": "yes"}, []string{"example.com/kept"}
	admin.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "alice", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "rbac.authorization.k8s.io/v1",
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:rules":{}}`)},
	}}
	return map[string]runtime.Object{
		// Roles before aggregation was introduced: one with an administrator's changes, and one whose successor exists
		// already.
		"clusterroles/admin":                    admin,
		"clusterroles/view":                     role("view", rule("viewers")),
		"clusterroles/system:aggregate-to-view": role("system:aggregate-to-view", rule("aggregated")),
		// A binding that has been split since, and one that refers to another role.
		"clusterrolebindings/system:discovery":  narrowed,
		"clusterrolebindings/system:basic-user": binding("system:basic-user", "view", user),
	}
}

func former(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, UID: "00000000-0000-0000-0000-000000000001", CreationTimestamp: metav1.Unix(1577934245, 0),
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// storePolicy writes the former policy to etcd.
func storePolicy(t *testing.T, client *clientv3.Client, prefix string) {
	serializer := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	for key, object := range formerPolicy() {
		var data bytes.Buffer
		if err := serializer.Encode(object, &data); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), prefix+"/"+key, data.String()); err != nil {
			t.Fatal(err)
		}
	}
}

// havePolicyUpgraded compares the policies after each server has upgraded them.
func (both *servers) havePolicyUpgraded(t *testing.T) {
	for _, resource := range []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
		want, got := both.kubernetes.policy(t, resource), both.quorate.policy(t, resource)
		if len(want) < 5 {
			t.Errorf("only %d %s", len(want), resource)
		}
		mustEqual(t, resource+" of kube-apiserver (-) and quorate (+)", want, got)
	}
	// Fail if the upgrade did nothing.
	discovery := both.quorate.policy(t, "clusterrolebindings")["system:public-info-viewer"]
	if subjects := discovery["subjects"].([]any); len(subjects) != 2 {
		t.Errorf("public information is for %v", subjects)
	}
	aggregated := both.quorate.policy(t, "clusterroles")["system:aggregate-to-admin"]
	if first := aggregated["rules"].([]any)[0].(map[string]any); cmp.Diff(first["resources"], []any{"admins"}) != "" {
		t.Errorf("the first rule of system:aggregate-to-admin is %v", first)
	}
}

// policy returns the objects of a resource by namespace and name, without values that servers choose.
func (s *server) policy(t *testing.T, resource string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, item := range s.get(t, "/apis/rbac.authorization.k8s.io/v1/"+resource)["items"].([]any) {
		o := object(item.(map[string]any))
		m := metadata(o)
		namespace, _ := m["namespace"].(string)
		name := m["name"].(string)
		if namespace != "" {
			name = namespace + "/" + name
		}
		delete(m, "resourceVersion")
		if m["creationTimestamp"] != "2020-01-02T03:04:05Z" {
			delete(m, "uid")
			delete(m, "creationTimestamp")
		}
		managers, _ := m["managedFields"].([]any)
		for _, manager := range managers {
			delete(manager.(map[string]any), "time")
		}
		objects[name] = o
	}
	return objects
}
