package desired

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/config"
)

// FuzzExtraArgs passes one extra argument through the operator to the API server's parser. If the operator accepts the
// argument, flags that users cannot set keep the operator's values, and the API server would start.
func FuzzExtraArgs(f *testing.F) {
	for _, name := range []string{
		"client-ca-file", "client_ca_file", "--client-ca-file", "client-ca-file=/x", "Client-CA-File",
		"etcd_peer_trusted_ca_file", "token-auth-file", "tls-min-version", "max-requests-inflight", "etcd-election-timeout",
		"cors-allowed-origins", "v", "help", "requestheader-allowed-names", "tls-sni-cert-key",
		"strict-transport-security-directives", "feature-gates", "version", "",
	} {
		for _, value := range []string{
			"", "1", "/etc/quorate/certificates/serving.key", "$(POD_IP)", "a=true,b", "--secure-port=1", "\x00\n\"",
		} {
			f.Add(name, value)
		}
	}
	var bases []*pflag.FlagSet
	cluster := demo(nil)
	for _, replica := range exampleReplicas(cluster) {
		base, err := configuration(cluster, replica, exampleAddress, nil)
		if err != nil {
			f.Fatal(err)
		}
		bases = append(bases, base.Flags())
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		cluster := withArgs(map[string]string{name: value})
		err := Validate(cluster, nil)
		checkSpelling(t, name, value, err)
		if err != nil {
			return
		}
		for i, replica := range exampleReplicas(cluster) {
			started(t, cluster, replica).Flags().VisitAll(func(flag *pflag.Flag) {
				if want := bases[i].Lookup(flag.Name); denialReason(flag.Name) != "" && want.Value.String() != flag.Value.String() {
					t.Errorf("%q=%q set --%s to %s; the operator's is %s", name, value, flag.Name, flag.Value, want.Value)
				}
			})
		}
	})
}

// FuzzPatch applies a patch to a pod. If the operator accepts the patch, all fields of the operator are unchanged.
func FuzzPatch(f *testing.F) {
	for _, patch := range []string{
		`{"spec": {"hostNetwork": true}}`, `{"spec": {"HostNetwork": true}}`, `{"Spec": {"nodeName": "x"}}`,
		`{"spec": {"containers": [{"name": "apiserver", "image": "x"}]}}`,
		`{"spec": {"containers": [{"name": "other", "image": "x"}]}}`,
		`{"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}`, `{"spec": {"volumes": [{"name": "d", "emptyDir": {}}]}}`,
		`{"spec": {"containers": [{"name": "apiserver", "volumeMounts": [{"name": "data", "mountPath": "/var"}]}]}}`,
		`{"metadata": {"labels": {"a": "b", "quorate.dev/role": "c"}}}`,
		`{"spec": {"containers": [{"name": "apiserver", "env": [{"name": "A"}]}]}}`,
		`{"spec": {"$retainKeys": ["containers"]}}`, `{"spec": {"initContainers": [{"name": "apiserver"}]}}`, `[]`,
		`null`, `{"spec": null}`,
	} {
		f.Add(patch)
	}
	cluster := demo(nil)
	replica := exampleReplicas(cluster)[0]
	before, err := Pod(cluster, "quorate:1", replica, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, patch string) {
		after, err := patched(before.DeepCopy(), &runtime.RawExtension{Raw: []byte(patch)})
		if err != nil {
			return
		}
		server := after.Spec.Containers[0]
		if server.Name != ServerContainer || server.Image != "quorate:1" ||
			!slices.Equal(server.Args, before.Spec.Containers[0].Args) {
			t.Errorf("%s changed the API server's container to %+v", patch, server)
		}
		if after.Spec.HostNetwork || after.Spec.NodeName != "" || after.Name != before.Name ||
			after.Spec.Hostname != before.Spec.Hostname ||
			!reflect.DeepEqual(after.Spec.SecurityContext, before.Spec.SecurityContext) {
			t.Errorf("%s changed the pod to %+v", patch, after)
		}
		for _, volume := range before.Spec.Volumes {
			if !slices.ContainsFunc(after.Spec.Volumes, func(v corev1.Volume) bool { return reflect.DeepEqual(v, volume) }) {
				t.Errorf("%s changed volume %s", patch, volume.Name)
			}
		}
	})
}

// checkSpelling fails unless the operator rejects every spelling of a flag that users cannot set and that the API
// server's parser accepts.
func checkSpelling(t *testing.T, name, value string, refused error) {
	t.Helper()
	for _, arg := range []string{fmt.Sprintf("--%s=%s", strings.TrimLeft(name, "-"), value), name + "=" + value, name} {
		flags := config.Default().Flags()
		flags.Usage = func() {}
		_ = flags.ParseAll([]string{arg}, func(flag *pflag.Flag, _ string) error {
			if denialReason(flag.Name) != "" && refused == nil {
				t.Errorf("%q=%q sets --%s", name, value, flag.Name)
			}
			return nil
		})
	}
}
