package desired

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/encryption"
)

func encrypting(resources ...string) func(*v1alpha1.ApiServerClusterSpec) {
	return func(s *v1alpha1.ApiServerClusterSpec) { s.Encryption = &v1alpha1.Encryption{Resources: resources} }
}

// TestEncryptedResources compares the entries of spec.encryption.resources that the operator rejects with those that
// the CRD rejects. Only the operator knows the resources of groups other than the core group.
func TestEncryptedResources(t *testing.T) {
	evaluate := rules(t, "encryption", "resources")
	for entry, c := range map[string]struct {
		want string // part of the operator's error; "": valid
		crd  bool   // whether the CRD rejects the entry, too
	}{
		"secrets": {"", false}, "configmaps": {"", false}, "endpoints": {"", false}, "componentstatuses": {"", false},
		"networkpolicies.networking.k8s.io": {"", false}, "ingresses.networking.k8s.io": {"", false},
		"leases.coordination.k8s.io": {"", false}, "widgets.example.com": {"", false}, "*.apps": {"", false},
		"*.example.com": {"", false}, "*.*": {"", false}, "*.": {"", false},
		"secret":              {`the core API group has no resource "secret"; write custom resources with their group`, true},
		"widgets":             {`the core API group has no resource "widgets"`, true},
		"deployment.apps":     {`apps has no resource "deployment"`, false},
		"secrets.apps":        {`apps has no resource "secrets"`, false},
		"secretlist":          {`the core API group has no resource "secretlist"`, true},
		"deployments.app":     {`"app" is neither a built-in API group nor the group of a custom resource`, false},
		"ingresses.extension": {`"extension" is neither a built-in API group`, false},
		"Secrets":             {"", true}, // the API server's own validation has an error for it
		"*":                   {"", true},
	} {
		err := validateEncryption(demo(encrypting("secrets", entry)))
		if (err == nil) != (c.want == "") ||
			err != nil && !strings.HasPrefix(err.Error(), "spec.encryption.resources: "+c.want) {
			t.Errorf("%s: got %v, want %q", entry, err, c.want)
		}
		if message := evaluate([]any{"secrets", entry}); (message != "") != c.crd {
			t.Errorf("%s: the CRD says %q", entry, message)
		}
	}
}

// TestUndecryptable checks that stored objects are decrypted only if the user has confirmed it for their entry.
func TestUndecryptable(t *testing.T) {
	current := encryption.Scheme{Resources: []string{"configmaps", "secrets", "widgets.example.com"}}
	for name, c := range map[string]struct {
		edit      func(*v1alpha1.ApiServerClusterSpec)
		confirmed string
		want      []string
	}{
		"unchanged":     {encrypting("configmaps", "secrets", "widgets.example.com"), "", nil},
		"wildcards":     {encrypting("*.", "*.example.com"), "", nil},
		"removed entry": {encrypting("secrets", "widgets.example.com"), "", []string{"configmaps"}},
		"no encryption": {nil, "", []string{"configmaps", "secrets", "widgets.example.com"}},
		"no encryption, confirmed for two": {
			nil, "configmaps, widgets.example.com", []string{"secrets"},
		},
		"no encryption, confirmed for all": {nil, "configmaps,secrets,widgets.example.com", nil},
		"confirmed for a prefix":           {nil, "secret configmaps widgets", []string{"secrets", "widgets.example.com"}},
	} {
		cluster := demo(c.edit)
		cluster.Annotations = map[string]string{v1alpha1.DecryptAnnotation: c.confirmed}
		if got := Undecryptable(cluster, current); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestKeysOfEncryption checks that the Secrets with the state and with the configuration of an encryption fit together,
// and that pods with encryption are recognized.
func TestKeysOfEncryption(t *testing.T) {
	cluster := demo(encrypting())
	scheme, err := EncryptionScheme(cluster).WithKey(encryption.Scheme{}, true, epoch())
	if err != nil {
		t.Fatal(err)
	}
	state := encryption.State{Current: scheme}
	var c Configuration
	if c.Encryption, err = state.Configuration(); err != nil {
		t.Fatal(err)
	}
	keys, files := EncryptionKeys(cluster, state, nil), c.Secret(cluster, nil, nil)
	if _, retired := keys.Data[RetiredKeysKey]; retired {
		t.Errorf("got %q without retired keys", keys.Data)
	}
	stored, err := encryption.Parse(keys.Data[EncryptionStateKey])
	if err != nil || !HasEncryption(files) {
		t.Fatalf("got %v, configuration %q", err, files.Data)
	}
	if missing := MissingKeys(stored, files, true); len(missing) > 0 {
		t.Errorf("got missing keys %q", missing)
	}
	if missing := MissingKeys(encryption.State{}, files, false); !slices.Equal(missing, []string{scheme.Provider.Name}) {
		t.Errorf("got missing keys %q of an empty state, want %s", missing, scheme.Provider.Name)
	}
	if HasEncryption(Configuration{}.Secret(cluster, nil, nil)) {
		t.Error("a Secret without configuration has encryption")
	}
	for name, want := range map[string]bool{"with": true, "without": false} {
		replica := replicas["member"].replica
		if want {
			replica.Configuration = c
		}
		pod, err := Pod(cluster, "quorate:1", replica, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := MountsEncryption(pod); got != want {
			t.Errorf("a pod %s encryption: got %v", name, got)
		}
	}
}

// TestMountedSecrets checks that Secrets that pods mount are recognized: deleting one would prevent a restart of the
// pod.
func TestMountedSecrets(t *testing.T) {
	cluster, c := configured()
	replica := replicas["member"].replica
	replica.Configuration = c
	pod, err := Pod(cluster, "quorate:1", replica, "")
	if err != nil {
		t.Fatal(err)
	}
	static := c.StaticSecret(cluster).Name
	for secret, want := range map[string]bool{static: true, "demo-configuration": true, "demo-configuration-0": false} {
		if got := MountsConfiguration(pod, secret); got != want {
			t.Errorf("the configuration of the pod is from %s: got %v", secret, got)
		}
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "theirs"}, // a volume of spec.patches
	}})
	for secret, want := range map[string]bool{
		static: true, "demo-serving": true, "demo-etcd-peer": true, "theirs": true, "demo-admin": false, "demo": false,
	} {
		if got := Mounts(pod, secret); got != want {
			t.Errorf("the pod mounts %s: got %v", secret, got)
		}
	}
}
