package source

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

func objects(t *testing.T) Objects {
	t.Helper()
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
	})
	configMaps := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
	})
	key := metav1.ObjectMeta{Namespace: "ns", Name: "demo"}
	if err := store.Add(
		&corev1.Secret{ObjectMeta: key, Data: map[string][]byte{"password": []byte("secret")}},
	); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Add(&corev1.ConfigMap{
		ObjectMeta: key, Data: map[string]string{"text": "a"}, BinaryData: map[string][]byte{"binary": {0xff}},
	}); err != nil {
		t.Fatal(err)
	}
	return Objects{Secrets: corelisters.NewSecretLister(store), ConfigMaps: corelisters.NewConfigMapLister(configMaps)}
}

func TestKeys(t *testing.T) {
	o := objects(t)
	for name, c := range map[string]struct {
		get  func(namespace, name, key string) ([]byte, error)
		key  string
		want string
	}{
		"secret":           {o.SecretKey, "password", "secret"},
		"config map":       {o.ConfigMapKey, "text", "a"},
		"binary":           {o.ConfigMapKey, "binary", "\xff"},
		"no secret key":    {o.SecretKey, "missing", ""},
		"no configmap key": {o.ConfigMapKey, "missing", ""},
	} {
		got, err := c.get("ns", "demo", c.key)
		if string(got) != c.want || (c.want == "") != errors.Is(err, ErrNoKey) {
			t.Errorf("%s: %q, error %v, want %q", name, got, err, c.want)
		}
		if _, err := c.get("other", "demo", c.key); !apierrors.IsNotFound(err) {
			t.Errorf("%s in another namespace: error %v, want NotFound", name, err)
		}
	}
}

func TestField(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns", Labels: map[string]string{"b": "2", "a": `"1"`}},
		Status:     corev1.PodStatus{PodIP: "127.9.64.1"},
	}
	for path, want := range map[string]string{
		"metadata.name":                "demo",
		"metadata.labels":              "a=\"\\\"1\\\"\"\nb=\"2\"",
		"metadata.labels['b']":         "2",
		"metadata.annotations['none']": "",
		"status.podIP":                 "127.9.64.1",
	} {
		if got, err := Field(pod, path); err != nil || got != want {
			t.Errorf("Field(%s): %q, error %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"", "spec.containers", "metadata.name['x']", "metadata.labels['b'"} {
		if got, err := Field(pod, path); err == nil {
			t.Errorf("Field(%q): %q, no error", path, got)
		}
	}
}

func TestResource(t *testing.T) {
	container := corev1.Container{Name: "main"}
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1025Ki")}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}
	for name, c := range map[string]struct {
		reference corev1.ResourceFieldSelector
		want      string
	}{
		"cpu rounded up": {corev1.ResourceFieldSelector{Resource: "requests.cpu"}, "2"},
		"cpu in millicores": {
			corev1.ResourceFieldSelector{Resource: "requests.cpu", Divisor: resource.MustParse("1m")}, "1500",
		},
		"memory in bytes": {corev1.ResourceFieldSelector{Resource: "limits.memory"}, "1049600"},
		"memory in MiB": {
			corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}, "2",
		},
		"container by name":  {corev1.ResourceFieldSelector{ContainerName: "main", Resource: "requests.cpu"}, "2"},
		"unset":              {corev1.ResourceFieldSelector{Resource: "limits.cpu"}, "0"},
		"missing container":  {corev1.ResourceFieldSelector{ContainerName: "other", Resource: "requests.cpu"}, ""},
		"neither of the two": {corev1.ResourceFieldSelector{Resource: "cpu"}, ""},
	} {
		got, err := Resource(pod, &container, &c.reference)
		if got != c.want || (c.want == "") != (err != nil) {
			t.Errorf("%s: %q, error %v, want %q", name, got, err, c.want)
		}
	}
	if got, err := Resource(pod, nil, &corev1.ResourceFieldSelector{Resource: "limits.cpu"}); err == nil {
		t.Errorf("without a container: %q, no error", got)
	}
}
