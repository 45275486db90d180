package desired

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/encryption"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func fromConfigMap(name string) *v1alpha1.ConfigurationFiles {
	return &v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: name}}
}

// configured returns a cluster with all parts of the configuration, and their files.
func configured() (*v1alpha1.ApiServerCluster, Configuration) {
	cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) {
		s.Audit = &v1alpha1.Audit{ConfigurationFiles: *fromConfigMap("audit"), Log: v1alpha1.AuditFile, WebhookKey: "hook"}
		s.Audit.Key = "policy.yaml"
		s.Authentication, s.Authorization = fromConfigMap("authentication"), fromConfigMap("authorization")
		s.Admission, s.Egress, s.Tracing = fromConfigMap("admission"), fromConfigMap("egress"), fromConfigMap("tracing")
		s.Encryption = &v1alpha1.Encryption{Provider: v1alpha1.KMSv2, KMS: &v1alpha1.KMS{
			Name: "vault", Endpoint: "unix:///run/kms/vault.sock", HostPath: "/run/vault",
		}}
		s.Patches.Pod = &runtime.RawExtension{Raw: []byte(`{"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [
			{"name": "shipper", "image": "shipper:1", "volumeMounts": [{"name": "audit-log", "mountPath": "/logs"}]},
			{"name": "apiserver", "env": [{"name": "GOGC", "value": "50"}]}], "volumes": [{"name": "more", "emptyDir": {}}]}}`)}
	})
	c := Configuration{Static: "anonymous", Files: map[string][]byte{}}
	for _, key := range []string{"audit.policy.yaml", "audit.hook", "authentication.config.yaml",
		"authorization.config.yaml",
		"authorization.kubeconfig", "admission.config.yaml", "admission.pods.yaml",
		"egress.config.yaml", "tracing.config.yaml"} {
		c.Files[key] = []byte(key)
	}
	state := encryption.State{Current: EncryptionScheme(cluster)}
	c.Encryption, _ = state.Configuration()
	c.Sockets = Sockets(state)
	return cluster, c
}

// TestConfiguredPod compares those parts of a pod that the configuration determines with a golden file.
func TestConfiguredPod(t *testing.T) {
	cluster, c := configured()
	if err := Validate(cluster, nil); err != nil {
		t.Fatal(err)
	}
	replica := replicas["member"].replica
	replica.Configuration = c
	pod, err := Pod(cluster, "quorate:1", replica, "hash")
	if err != nil {
		t.Fatal(err)
	}
	server := pod.Spec.Containers[0]
	var args []string
	for _, arg := range server.Args {
		if strings.Contains(arg, ConfigurationDirectory) || strings.Contains(arg, "audit") ||
			strings.Contains(arg, "automatic-reload") {
			args = append(args, arg)
		}
	}
	got, err := yaml.Marshal(map[string]any{
		"labels": pod.Labels, "args": args, "mounts": server.VolumeMounts, "env": server.Env,
		"sidecars": pod.Spec.Containers[1:], "volumes": pod.Spec.Volumes[1:], "reloaded": c.Secret(cluster, nil, nil).Name,
		"static": c.StaticSecret(cluster), "encryption": string(c.Encryption),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "configured-pod.yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != string(got) {
		t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, got, want)
	}
}

// TestRestarts checks which changes of the configuration restart pods, and which are reloaded.
func TestRestarts(t *testing.T) {
	for name, c := range map[string]struct {
		edit              func(*v1alpha1.ApiServerCluster, *Configuration)
		restarts, reloads bool
	}{
		"nothing": {func(*v1alpha1.ApiServerCluster, *Configuration) {}, false, false},
		"audit policy": {
			func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Files["audit.policy.yaml"] = nil }, true, false,
		},
		"audit log": {
			func(s *v1alpha1.ApiServerCluster, _ *Configuration) { s.Spec.Audit.Log = "None" }, true, false,
		},
		"issuers": {
			func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Files["authentication.config.yaml"] = nil }, false, true,
		},
		"anonymous requests": {func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Static = "x" }, true, false},
		"webhooks": {
			func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Files["authorization.config.yaml"] = nil }, false, true,
		},
		"kubeconfig": {
			func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Files["authorization.kubeconfig"] = nil }, true, false,
		},
		"encryption key": {func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Encryption = []byte("x") }, false, true},
		"no encryption":  {func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Encryption = nil }, true, true},
		"KMS socket":     {func(_ *v1alpha1.ApiServerCluster, c *Configuration) { c.Sockets = nil }, true, false},
		"patch":          {func(s *v1alpha1.ApiServerCluster, _ *Configuration) { s.Spec.Patches.Pod = nil }, true, false},
		"part removed":   {func(s *v1alpha1.ApiServerCluster, _ *Configuration) { s.Spec.Tracing = nil }, true, false},
	} {
		cluster, content := configured()
		before, reload := HashesOf(cluster, "quorate:1", content), content.ReloadHash(cluster)
		c.edit(cluster, &content)
		if got := HashesOf(cluster, "quorate:1", content).Server != before.Server; got != c.restarts {
			t.Errorf("%s: restarts %v, want %v", name, got, c.restarts)
		}
		if got := content.ReloadHash(cluster) != reload; got != c.reloads {
			t.Errorf("%s: reloads %v, want %v", name, got, c.reloads)
		}
	}
}

// TestMountedFilesAreKept checks that the Secret keeps files that pods mount.
func TestMountedFilesAreKept(t *testing.T) {
	cluster, c := configured()
	replica := replicas["member"].replica
	replica.Configuration = c
	pod, err := Pod(cluster, "quorate:1", replica, "hash")
	if err != nil {
		t.Fatal(err)
	}
	current := c.Secret(cluster, nil, nil).Data
	cluster.Spec.Authentication = nil
	rest := Configuration{Files: map[string][]byte{}}
	kept := rest.Secret(cluster, current, []corev1.Pod{*pod}).Data
	for _, key := range []string{"authentication.config.yaml", "encryption.config.yaml"} {
		if kept[key] == nil {
			t.Errorf("%s was dropped while a pod mounts it", key)
		}
	}
	if len(rest.Secret(cluster, current, nil).Data) != 0 {
		t.Error("files that no pod mounts were kept")
	}
}

func TestPatches(t *testing.T) {
	for _, test := range []struct{ patch, want string }{
		{`{"spec": {"initContainers": [{"name": "a", "image": "b", "restartPolicy": "Always"}]}}`, ""},
		{`{"metadata": {"annotations": {"example.com/a": "b"}}}`, ""},
		{`{"spec": {"serviceAccountName": "a", "runtimeClassName": "b"}}`, ""},
		{`{"spec": {"hostNetwork": true}}`, "spec.hostNetwork is set by the operator"},
		{`{"spec": {"tolerations": []}}`, "spec.tolerations is spec.scheduling.tolerations"},
		{`{"spec": {"containers": [{"name": "apiserver", "image": "x"}]}}`, "spec.containers[apiserver].image"},
		{`{"spec": {"containers": [{"name": "apiserver", "args": ["x"]}]}}`, "spec.containers[apiserver].args"},
		{`{"spec": {"containers": [{"name": "apiserver", "env": [{"name": "POD_IP", "value": "x"}]}]}}`, "env[POD_IP]"},
		{`{"spec": {"containers": [{"name": "apiserver", "$patch": "delete"}]}}`, "directive spec.containers[0].$patch"},
		{`{"spec": {"containers": null}}`, "spec.containers must not be null"},
		{`{"spec": {"$setElementOrder/containers": [{"name": "x"}]}}`, "directive"},
		{`{"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}`, "spec.volumes[data]"},
		{`{"spec": {"volumes": [{"name": "certificates", "emptyDir": {}}]}}`, "spec.volumes[certificates]"},
		{
			`{"spec": {"containers": [{"name": "apiserver", "volumeMounts": [{"name": "x", "mountPath": "/etc"}]}]}}`,
			"volumeMounts[/etc]",
		},
		{`{"metadata": {"labels": {"quorate.dev/role": "x"}}}`, "metadata.labels[quorate.dev/role]"},
		{`{"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}}`, "managed-by"},
		{`{"metadata": {"name": "x"}}`, "metadata.name"},
		{`{"status": {}}`, "status cannot be patched"},
		{`{"spec": {"unknown": 1}}`, `unknown field "spec.unknown"`},
		{`{"spec": {"HostNetwork": true}}`, `unknown field "spec.HostNetwork"`},
		{`{"spec": {"NodeName": "x"}}`, `unknown field "spec.NodeName"`},
		{`{"spec": {"Volumes": [{"name": "data", "emptyDir": {}}]}}`, `unknown field "spec.Volumes"`},
		{`{"spec": {"Containers": [{"name": "apiserver", "image": "x"}]}}`, `unknown field "spec.Containers"`},
		{`{"spec": {"containers": [{"name": "apiserver", "Image": "x"}]}}`, "spec.containers[apiserver].Image"},
		{`{"Spec": {"hostNetwork": true}}`, "Spec cannot be patched"},
		{`{"spec": {"dnsPolicy": "None", "dnsPolicy": "Default"}}`, `duplicate field "spec.dnsPolicy"`},
		{`{"spec": {"volumes": [{"name": "member-record", "emptyDir": {}}]}}`, "spec.volumes[member-record]"},
		{
			`{"spec": {"containers": [{"name": "apiserver", "volumeMounts": [{"name": "x", "mountPath": "/var"}]}]}}`,
			"volumeMounts[/var]",
		},
		{`[]`, "cannot unmarshal"},
	} {
		patch, want := test.patch, test.want
		err := Validate(demo(func(s *v1alpha1.ApiServerClusterSpec) {
			s.Patches.Pod = &runtime.RawExtension{Raw: []byte(patch)}
		}), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", patch, err, want)
		}
	}
}

func TestEncryptionScheme(t *testing.T) {
	got := EncryptionScheme(demo(func(s *v1alpha1.ApiServerClusterSpec) { s.Encryption = &v1alpha1.Encryption{} }))
	if got.Provider.Kind != encryption.Secretbox || strings.Join(got.Resources, ",") != "secrets" {
		t.Errorf("defaults are %+v", got)
	}
	cluster, _ := configured()
	if got := EncryptionScheme(cluster).Provider; got.Timeout != 3*time.Second || got.Name != "vault" {
		t.Errorf("the plugin is %+v", got)
	}
}
