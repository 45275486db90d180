package compatibility

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/encryption/encryptiontest"
	"quorate.dev/test/upstream"
)

// encryptedAll is an EncryptionConfiguration with every provider and every kind of wildcard. The identity provider is
// not in it, so that values that are not encrypted cannot be read.
const encryptedAll = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers: [{kms: {apiVersion: v2, name: plugin, endpoint: "ENDPOINT", timeout: 3s}}]
- resources: [configmaps]
  providers: [{aesgcm: {keys: [{name: one, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]
- resources: ['*.apps', notes.example.com]
  providers: [{aescbc: {keys: [{name: two, secret: AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]
- resources: ['*.']
  providers: [{secretbox: {keys: [{name: three, secret: AgECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]
- resources: ['*.*']
  providers: [{secretbox: {keys: [{name: four, secret: AwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]
`

// TestEncryptionOfOneEtcd runs Quorate and kube-apiserver on one etcd with the same encryption keys. It checks that
// each server reads, updates and watches the objects that the other server has encrypted, and that all values in etcd
// are encrypted, except the records that kube-apiserver never encrypts (plainKeys).
func TestEncryptionOfOneEtcd(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	plugin := encryptiontest.Start(t, "1")
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(
		file, []byte(strings.ReplaceAll(encryptedAll, "ENDPOINT", plugin.Endpoint())), 0o600,
	); err != nil {
		t.Fatal(err)
	}
	both := startServers(t, "--encryption-provider-config="+file, "--endpoint-reconciler-type=lease",
		"--advertise-address=192.0.2.21")
	both.kubernetes.create(t, definitions, definition("notes", "Note"))
	both.kubernetes.awaitServed(t, "/apis/example.com/v1/notes")
	both.quorate.awaitServed(t, "/apis/example.com/v1/notes")
	t.Run("objects", both.exchangeAll)
	both.keepNothingPlain(t)
}

// exchangeAll exchanges objects of every provider.
func (both *servers) exchangeAll(t *testing.T) {
	for _, c := range []struct{ prefix, key, collection, body string }{
		{"k8s:enc:kms:v2:plugin:", "secrets/default", "/api/v1/namespaces/default/secrets", `"data":{"a":"YQ=="}`},
		{"k8s:enc:aesgcm:v1:one:", "configmaps/default", "/api/v1/namespaces/default/configmaps", `"data":{"a":"b"}`},
		{
			"k8s:enc:aescbc:v1:two:", "controllerrevisions/default",
			"/apis/apps/v1/namespaces/default/controllerrevisions", `"data":{},"revision":1`,
		},
		{
			"k8s:enc:aescbc:v1:two:", "example.com/notes/default", "/apis/example.com/v1/namespaces/default/notes",
			`"apiVersion":"example.com/v1","kind":"Note","spec":{"size":3}`,
		},
		{
			"k8s:enc:secretbox:v1:three:", "services/specs/default", "/api/v1/namespaces/default/services",
			`"spec":{"type":"NodePort","ports":[{"port":80}]}`,
		},
		{"k8s:enc:secretbox:v1:three:", "minions", "/api/v1/nodes", `"spec":{}`},
		{"k8s:enc:secretbox:v1:three:", "events/default", "/api/v1/namespaces/default/events",
			`"involvedObject":{"namespace":"default"}`},
		{
			"k8s:enc:secretbox:v1:four:", "leases/default", "/apis/coordination.k8s.io/v1/namespaces/default/leases",
			`"spec":{}`,
		},
	} {
		t.Run(c.key, func(t *testing.T) {
			t.Parallel()
			both.exchange(t, c.collection, "/registry/"+c.key+"/", c.prefix, c.body)
		})
	}
}

// exchange creates an object through each server and changes it through the other.
func (both *servers) exchange(t *testing.T, collection, key, prefix, body string) {
	for i, through := range []*server{both.kubernetes, both.quorate} {
		other := []*server{both.quorate, both.kubernetes}[i]
		name := fmt.Sprintf("object-%d", i)
		path := collection + "/" + name
		next := other.watch(t, collection, name)
		through.create(t, collection, fmt.Sprintf(`{"metadata":{"name":%q},%s}`, name, body))
		if e := next(); e.Type != "ADDED" || metadata(e.Object)["name"] != name {
			t.Errorf("%s: watch of %s: %v", other.name, name, e)
		}
		both.mustBeEncrypted(t, key+name, prefix)
		other.patch(t, path, `{"metadata":{"labels":{"changed":"yes"}}}`)
		both.mustBeEncrypted(t, key+name, prefix)
		for _, s := range []*server{through, other} {
			if labels := metadata(s.get(t, path))["labels"]; fmt.Sprint(labels) != "map[changed:yes]" {
				t.Errorf("%s: labels of %s: %v", s.name, name, labels)
			}
		}
		next()
		through.delete(t, path)
		if e := next(); e.Type != "DELETED" || fmt.Sprint(metadata(e.Object)["labels"]) != "map[changed:yes]" {
			t.Errorf("%s: watch of %s: %v", other.name, name, e)
		}
		other.mustBeGone(t, path)
	}
}

func (both *servers) mustBeEncrypted(t *testing.T, key, prefix string) {
	t.Helper()
	response, err := both.etcd.Get(t.Context(), key)
	if err != nil || len(response.Kvs) != 1 {
		t.Fatalf("%s: %v %v", key, response, err)
	}
	if !bytes.HasPrefix(response.Kvs[0].Value, []byte(prefix)) {
		t.Errorf("%s begins with %.40q, want %q", key, response.Kvs[0].Value, prefix)
	}
}

// plainKeys are keys that do not contain objects of the API. kube-apiserver never encrypts their values.
var plainKeys = regexp.MustCompile("^/registry/(ranges|masterleases|peerserverleases)/")

// keepNothingPlain checks that the values of all keys, which both servers have written, are encrypted.
func (both *servers) keepNothingPlain(t *testing.T) {
	response, err := both.etcd.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range response.Kvs {
		plain := !bytes.HasPrefix(kv.Value, []byte("k8s:enc:"))
		if plain != plainKeys.Match(kv.Key) {
			t.Errorf("%s is stored in plain text: %t, %.40q", kv.Key, plain, kv.Value)
		}
	}
	if len(response.Kvs) < 100 {
		t.Errorf("only %d keys are stored", len(response.Kvs))
	}
}
