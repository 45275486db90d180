package operator

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestServiceAccount(t *testing.T) {
	payload := base64.RawURLEncoding.EncodeToString(
		[]byte(`{"kubernetes.io":{"serviceaccount":{"name":"quorate-operator","uid":"u-1"}}}`),
	)
	for name, c := range map[string]struct {
		token string
		owner []metav1.OwnerReference
		fails bool
	}{
		"bound token": {
			token: "e30." + payload + ".c2ln", owner: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ServiceAccount", Name: "quorate-operator", UID: "u-1",
			}},
		},
		"other claims":  {token: "e30.e30.c2ln"},
		"opaque token":  {token: "opaque"},
		"not encoded":   {token: "e30.%.c2ln", fails: true},
		"not an object": {token: "e30.MQ.c2ln", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(c.token), 0o600); err != nil {
				t.Fatal(err)
			}
			owner, err := serviceAccount(file)
			if !reflect.DeepEqual(owner, c.owner) || (err != nil) != c.fails {
				t.Errorf("got %v, %v", owner, err)
			}
		})
	}
	if owner, err := serviceAccount(filepath.Join(t.TempDir(), "missing")); owner != nil || err != nil {
		t.Errorf("outside of a pod: %v, %v", owner, err)
	}
}
