package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"quorate.dev/test/upstream"
)

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// TestStorageVersionMigration migrates a custom resource to another version, and a built-in one to another encryption
// key, by kube-controller-manager. It also passes with StartKubernetes.
func TestStorageVersionMigration(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	directory := t.TempDir()
	etcd, err := upstream.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	startServer := func(t *testing.T, options upstream.Options) (*upstream.APIServer, error) {
		options.Etcd = etcd.Endpoint
		return upstream.StartQuorate(t.Context(), options)
	}
	keys := filepath.Join(directory, "encryption.yaml")
	writeKeys(t, keys, "old", "new")
	c := start(t, directory, startServer, "--encryption-provider-config="+keys,
		"--encryption-provider-config-automatic-reload=true",
		"--feature-gates=StorageVersionMigrator=true", "--runtime-config=storagemigration.k8s.io/v1beta1=true")
	s := &stepTest{T: t, cluster: c, namespace: "default"}
	s.create(gadgets)
	s.awaitCondition("CustomResourceDefinition.apiextensions.k8s.io", "gadgets.example.com", "Established", "True")
	s.mapAgain()
	for i := range 3 {
		s.create(fmt.Sprintf(`{apiVersion: example.com/v1, kind: Gadget, metadata: {name: gadget-%d}, spec: {n: %d}}`, i, i))
	}
	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: secret}, stringData: {key: value}}`)
	s.awaitEncrypted(etcd.Endpoint, "old", "secret")
	writeKeys(t, keys, "new", "old")
	s.patch("CustomResourceDefinition.apiextensions.k8s.io", "gadgets.example.com", strings.NewReplacer(
		"storage: true", "storage: false", "storage: false", "storage: true").Replace(versionsOf(gadgets)))
	const definition, stored = "gadgets.example.com", "status.storedVersions"
	s.awaitField("CustomResourceDefinition.apiextensions.k8s.io", definition, stored, "[v1 v2]")

	manager, err := upstream.Client{
		Directory: directory, PKI: c.pki, Server: c.config, Arguments: []string{
			"--feature-gates=StorageVersionMigrator=true",
		},
	}.StartControllerManager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manager.StopAfter(t)
	s.awaitKey(etcd.Endpoint, "new")
	s.awaitEncrypted(etcd.Endpoint, "old", "secret")
	s.create(`{apiVersion: storagemigration.k8s.io/v1beta1, kind: StorageVersionMigration, metadata: {name: custom}, spec: {resource: {group: example.com, resource: gadgets}}}`)
	s.create(`{apiVersion: storagemigration.k8s.io/v1beta1, kind: StorageVersionMigration, metadata: {name: built-in}, spec: {resource: {resource: secrets}}}`)
	for _, migration := range []string{"custom", "built-in"} {
		s.awaitRevision(migration)
	}
	// The controller waits until its caches are at that revision, which a change shows before the next bookmark.
	s.create(`{apiVersion: example.com/v1, kind: Gadget, metadata: {name: later}, spec: {n: 3}}`)
	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: later}}`)
	for _, migration := range []string{"custom", "built-in"} {
		s.awaitCondition("StorageVersionMigration.storagemigration.k8s.io", migration, "Succeeded", "True")
	}
	s.awaitField("CustomResourceDefinition.apiextensions.k8s.io", definition, stored, "[v2]")
	s.checkStored(etcd.Endpoint)
	s.awaitEncrypted(etcd.Endpoint, "new", "secret", "later")
}

// writeKeys replaces an EncryptionConfiguration: the first key writes.
func writeKeys(t *testing.T, file string, names ...string) {
	t.Helper()
	secrets := map[string]string{
		"old": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "new": "AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
	}
	var keys []string
	for _, name := range names {
		keys = append(keys, fmt.Sprintf("{name: %s, secret: %s}", name, secrets[name]))
	}
	configuration := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
		"resources: [{resources: [secrets], providers: [{secretbox: {keys: [" + strings.Join(keys, ", ") + "]}}]}]\n"
	if err := os.WriteFile(file+".next", []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".next", file); err != nil {
		t.Fatal(err)
	}
}

// awaitKey waits until the server writes with a key.
func (s *stepTest) awaitKey(endpoint, key string) {
	s.Helper()
	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: probe}}`)
	writes := 0
	s.await("writes with key "+key, func(context.Context) error {
		writes++
		s.patch("Secret", "probe", fmt.Sprintf(`{stringData: {writes: "%d"}}`, writes))
		return s.encrypted(endpoint, key, "probe")
	})
}

// awaitEncrypted waits until Secrets are stored with a key.
func (s *stepTest) awaitEncrypted(endpoint, key string, names ...string) {
	s.Helper()
	for _, name := range names {
		s.await("Secret "+name+" with key "+key, func(context.Context) error { return s.encrypted(endpoint, key, name) })
	}
}

// encrypted returns an error if a Secret is not stored with a key.
func (s *stepTest) encrypted(endpoint, key, name string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	defer client.Close()
	response, err := client.Get(s.Context(), "/registry/secrets/default/"+name)
	if err != nil {
		return err
	}
	if len(response.Kvs) != 1 {
		return fmt.Errorf("Secret %s is not stored", name)
	}
	if value := response.Kvs[0].Value; !bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:"+key+":")) {
		return fmt.Errorf("Secret %s begins with %.30q", name, value)
	}
	return nil
}

// awaitRevision waits until a migration has the revision up to which it migrates objects.
func (s *stepTest) awaitRevision(migration string) {
	s.Helper()
	s.await("the revision of migration "+migration, func(ctx context.Context) error {
		object, err := s.of("StorageVersionMigration.storagemigration.k8s.io").Get(ctx, migration, meta.GetOptions{})
		if err != nil {
			return err
		}
		if revision, _, _ := unstructured.NestedString(object.Object, "status", "resourceVersion"); revision == "" {
			return fmt.Errorf("status %v", object.Object["status"])
		}
		return nil
	})
}

// versionsOf returns the part of a definition that has the versions, as a patch.
func versionsOf(definition string) string {
	return "spec:\n" + definition[strings.Index(definition, "  versions:"):]
}

// mapAgain reads discovery again.
func (s *stepTest) mapAgain() {
	s.Helper()
	s.await("discovery to have gadgets", func(context.Context) error {
		groups, err := restmapper.GetAPIGroupResources(s.typed.Discovery())
		if err != nil {
			return err
		}
		s.mapper = restmapper.NewDiscoveryRESTMapper(groups)
		_, err = s.mapper.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Gadget"})
		return err
	})
}

// checkStored checks that all objects are there and stored in version 2.
func (s *stepTest) checkStored(endpoint string) {
	s.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	response, err := client.Get(s.Context(), "/registry/example.com/gadgets/", clientv3.WithPrefix())
	if err != nil {
		s.Fatal(err)
	}
	if len(response.Kvs) != 4 {
		s.Errorf("%d objects are stored", len(response.Kvs))
	}
	for _, kv := range response.Kvs {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(kv.Value); err != nil || object.GetAPIVersion() != "example.com/v2" {
			s.Errorf("%s is stored as %s: %v", kv.Key, kv.Value, err)
		}
	}
	if secret, err := s.typed.CoreV1().Secrets("default").Get(s.Context(), "secret", meta.GetOptions{}); err != nil ||
		string(secret.Data["key"]) != "value" {
		s.Errorf("the secret is %v: %v", secret, err)
	}
}
