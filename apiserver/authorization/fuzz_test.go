package authorization

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/cel"
	upstream "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
)

// FuzzDecodeLikeUpstream compares configurations and errors with kube-apiserver's.
func FuzzDecodeLikeUpstream(f *testing.F) {
	f.Add([]byte(fileOf("/does/not/exist", rbacEntry)), true)
	f.Add([]byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
{"type":"Node","name":"node"},{"type":"RBAC","name":"rbac"},{"type":"ABAC","name":"x"},{"type":"RBAC","name":"rbac"}]}`), false)
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthorizationConfiguration\nauthorizers:\n- type: "+
		"Node\n  name: node\n"), true)
	f.Add([]byte(""), true)
	f.Add([]byte("{"), false)
	f.Fuzz(func(t *testing.T, data []byte, required bool) {
		ourModes, theirModes := sets.New[string](), sets.New[apiserver.AuthorizerType]()
		if required {
			ourModes.Insert(modeRBAC)
			theirModes.Insert(modeRBAC)
		}
		ours, err := decode(data, ourModes)
		theirs, theirErr := upstream.LoadAndValidateData(data, cel.NewDefaultCompiler(), theirModes)
		if fmt.Sprint(err) != fmt.Sprint(theirErr) {
			t.Fatalf("got %v, upstream %v", err, theirErr)
		}
		if err == nil && !equality.Semantic.DeepEqual(ours, theirs) {
			t.Errorf("got %v, upstream %v", ours, theirs)
		}
	})
}
