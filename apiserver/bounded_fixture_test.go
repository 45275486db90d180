package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// fixture has the objects that give each of the server's controllers something to do.
type fixture struct {
	t       *testing.T
	b       *bubble
	objects dynamic.Interface
}

func newFixture(t *testing.T, s *Server, b *bubble) *fixture {
	t.Helper()
	config := s.loopback.config("test", "")
	config.ContentType, config.AcceptContentTypes = "", ""
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, b: b, objects: objects}
}

// create creates the objects of a file, which are in the order of their dependencies.
func (f *fixture) create(file string) {
	f.t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	f.must(err)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), len(content))
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return
		}
		f.must(err)
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		client := dynamic.ResourceInterface(f.objects.Resource(resource))
		if namespace := object.GetNamespace(); namespace != "" {
			client = f.objects.Resource(resource).Namespace(namespace)
		}
		if _, err = client.Create(f.t.Context(), object, metav1.CreateOptions{}); err != nil {
			f.t.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
		}
		<-time.After(time.Second) // until informers have observed it
	}
}

// disturb changes objects, so that each controller has to write.
func (f *fixture) disturb() {
	f.t.Helper()
	f.create("disturbance.yaml")
	for _, key := range []string{
		"namespaces/kube-public", "configmaps/kube-system/extension-apiserver-authentication",
		"configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
		"flowschemas/exempt", "prioritylevelconfigurations/exempt",
		"services/endpoints/default/kubernetes", "endpointslices/default/kubernetes", "configmaps/staying/counted",
		"serviceaccounts/staying/default", "apiregistration.k8s.io/apiservices/v1.example.com",
	} {
		f.b.remove(key)
	}
	f.b.removeAll("ipaddresses/")
	for resource, name := range map[schema.GroupVersionResource]string{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "widgets.example.com",
		{Version: "v1", Resource: "namespaces"}:                                               "leaving",
	} {
		f.must(f.objects.Resource(resource).Delete(f.t.Context(), name, metav1.DeleteOptions{}))
	}
}

// disturbServices deletes the objects without which no address can be allocated.
func (f *fixture) disturbServices() {
	f.b.remove("services/specs/default/kubernetes")
	f.b.remove("servicecidrs/kubernetes")
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// remove deletes a key, as another client of etcd does.
func (b *bubble) remove(path string, options ...clientv3.OpOption) {
	key := "/registry/" + path
	b.outside(func() {
		response, err := b.real.Delete(context.Background(), key, options...) //nolint:forbidigo // outside the bubble
		if err != nil || response.Deleted == 0 {
			b.t.Errorf("delete %s: %v, %v", key, response, err)
			return
		}
		b.await(key, response.Header.Revision)
	})
}

func (b *bubble) removeAll(prefix string) { b.remove(prefix, clientv3.WithPrefix()) }

// restore writes the previous value of a key, as another client of etcd does.
func (b *bubble) restore(ctx context.Context, key string, previous *clientv3.GetResponse) {
	operation := clientv3.OpDelete(key)
	if len(previous.Kvs) > 0 {
		operation = clientv3.OpPut(key, string(previous.Kvs[0].Value))
	}
	response, err := b.real.Txn(ctx).Then(operation).Commit()
	if err != nil {
		b.t.Error(err)
		return
	}
	b.await(key, response.Header.Revision)
}
