package container

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/source"
)

func objects() source.Objects {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team", Name: name} }
	secrets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	secrets.Add(&corev1.Secret{ObjectMeta: meta("keys"), Data: map[string][]byte{"token": []byte("s3cret")}})
	configMaps := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	configMaps.Add(&corev1.ConfigMap{ObjectMeta: meta("settings"), Data: map[string]string{"LEVEL": "4"}})
	return source.Objects{
		Secrets: corelisters.NewSecretLister(secrets), ConfigMaps: corelisters.NewConfigMapLister(configMaps),
	}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "demo-0", UID: "u1", Labels: map[string]string{"role": "member"},
		},
		Spec:   corev1.PodSpec{NodeName: "sandbox", ServiceAccountName: "default"},
		Status: corev1.PodStatus{PodIP: "127.9.64.1", HostIP: "127.9.0.2"},
	}
}

func field(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func secretKey(name, key string, optional *bool) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional,
	}}
}

func TestResolveEnvironment(t *testing.T) {
	container := &corev1.Container{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("1500m"),
		}},
		EnvFrom: []corev1.EnvFromSource{{
			Prefix:       "CFG_",
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
		}},
		Env: []corev1.EnvVar{
			{Name: "POD_IP", ValueFrom: field("status.podIP")},
			{Name: "ROLE", ValueFrom: field("metadata.labels['role']")},
			{Name: "URL", Value: "https://$(POD_IP):2380/$(UNKNOWN)/$$(POD_IP)"},
			{Name: "TOKEN", ValueFrom: secretKey("keys", "token", nil)},
			{Name: "ABSENT", ValueFrom: secretKey("none", "token", ptr.To(true))},
			{
				Name: "MEMORY", ValueFrom: &corev1.EnvVarSource{
					ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")},
				},
			},
			{
				Name: "CPU", ValueFrom: &corev1.EnvVarSource{
					ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"},
				},
			},
		},
	}
	got, err := ResolveEnvironment(pod(), container, objects())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"CFG_LEVEL=4", "CPU=2", "MEMORY=1024", "POD_IP=127.9.64.1", "ROLE=member", "TOKEN=s3cret",
		"URL=https://127.9.64.1:2380/$(UNKNOWN)/$(POD_IP)",
	}
	if diff := cmp.Diff(want, got.List()); diff != "" {
		t.Error(diff)
	}
}

func TestResolveEnvironmentErrors(t *testing.T) {
	for _, from := range []*corev1.EnvVarSource{
		secretKey("none", "token", nil), secretKey("keys", "none", nil), field("spec.containers"), field("spec['x']"), {},
	} {
		container := &corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: from}}}
		if _, err := ResolveEnvironment(pod(), container, objects()); err == nil ||
			!strings.Contains(err.Error(), "variable X") {
			t.Errorf("%v: error %v", from, err)
		}
	}
}

func TestTranslate(t *testing.T) {
	mounts := NewMounts([]Mount{
		{"/etc/quorate", "/s/config"}, {"/etc/quorate/pki/", "/s/pki"}, {"/data", "/s/data"},
	})
	tests := map[string]string{
		"/etc/quorate":                     "/s/config",
		"--a=/etc/quorate/pki/tls.crt":     "--a=/s/pki/tls.crt",
		"--a=/data,/etc/quorate/x:/data/y": "--a=/s/data,/s/config/x:/s/data/y",
		"--a=/etc/quorate2":                "--a=/etc/quorate2",
		"--a=/var/data":                    "--a=/var/data",
		"https://host/data":                "https://host/data",
		"unix:/data/socket":                "unix:/s/data/socket",
		"--a=/etc/quorate/pki2/x":          "--a=/s/config/pki2/x",
		"/":                                "/",
		"":                                 "",
		"file:///data/x stays":             "file:///data/x stays",
	}
	for text, want := range tests {
		if got := mounts.Translate(text); got != want {
			t.Errorf("Translate(%q): %q, want %q", text, got, want)
		}
	}
}

func TestResolveCommand(t *testing.T) {
	environment := Environment{"NAME": "demo-0"}
	mounts := NewMounts([]Mount{{"/data", "/s/data"}})
	tests := []struct {
		command, args []string
		want          Command
	}{
		{
			nil, []string{"apiserver", "--etcd-name=$(NAME)", "--etcd-data-dir=/data"}, Command{
				"quorate", []string{"apiserver", "--etcd-name=demo-0", "--etcd-data-dir=/s/data"},
			},
		},
		{[]string{"/usr/bin/quorate", "apiserver"}, []string{"--v=2"}, Command{"quorate", []string{"apiserver", "--v=2"}}},
		{
			[]string{"kube-apiserver"}, []string{"--bind-address=0.0.0.0"}, Command{
				"kube-apiserver", []string{"--bind-address=127.9.64.1"},
			},
		},
		{
			nil, []string{"https://0.0.0.0:2380", "0.0.0.0/0", "10.0.0.0"}, Command{
				"quorate", []string{"https://127.9.64.1:2380", "0.0.0.0/0", "10.0.0.0"},
			},
		},
	}
	for _, test := range tests {
		got, err := ResolveCommand(&corev1.Container{Command: test.command, Args: test.args}, environment,
			mounts, "127.9.64.1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := ResolveCommand(&corev1.Container{Command: []string{"sh", "-c", "true"}}, nil, nil, ""); err == nil {
		t.Error("a command other than quorate was accepted")
	}
}

func FuzzExpandAndTranslate(f *testing.F) {
	f.Add("--a=$(X)/data/$$(X)$")
	mounts := NewMounts([]Mount{{"/data", "/data"}})
	f.Fuzz(func(t *testing.T, text string) {
		if got := mounts.Translate(text); got != text {
			t.Errorf("a mount at its own path changed %q into %q", text, got)
		}
		if got := Expand(strings.ReplaceAll(text, "$", "$$"), Environment{"X": "1"}); got != text {
			t.Errorf("escaped %q became %q", text, got)
		}
	})
}
