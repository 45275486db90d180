package endtoend

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// kustomize renders a directory of config/.
func (s *sandbox) kustomize(directory string) string {
	s.t.Helper()
	command := exec.CommandContext(s.t.Context(), s.kubectl, "kustomize", directory)
	command.Stderr = os.Stderr
	return string(must(command.Output())(s.t))
}

// applyOverlay applies a rendered overlay, including the CustomResourceDefinitions and roles that the sandbox already
// has.
func (s *sandbox) applyOverlay(directory string) {
	s.t.Helper()
	s.run(s.management, "apply", "--server-side", "--force-conflicts", "-f", s.file(s.kustomize(directory)))
}

// testOverlays applies the overlays. The overlay for an external etcd contains a cluster, which gets the certificates
// and endpoints of a running etcd.
func (s *sandbox) testOverlays(t *testing.T) {
	s.applyOverlay("../../config/extension")
	s.userRoles(t)
	s.run(s.management, "create", "namespace", "quorate-clusters")
	s.applyOverlay("../../config/namespaced")

	directory := t.TempDir()
	serving, clients := must(upstream.NewAuthority("etcd"))(t), must(upstream.NewAuthority("etcd-clients"))(t)
	etcd := must(upstream.StartSecureEtcd(t.Context(), directory, serving, clients))(t)
	etcd.StopAfter(t)
	config := filepath.Join(directory, "config")
	check(t, os.CopyFS(config, os.DirFS("../../config")))
	cluster := filepath.Join(config, "external-etcd", "cluster")
	certificate, key, err := clients.Client("quorate")
	check(t, err)
	for name, content := range map[string][]byte{"ca.crt": serving.PEM(), "tls.crt": certificate, "tls.key": key} {
		check(t, os.WriteFile(filepath.Join(cluster, "certificates", name), content, 0o600))
	}
	file := filepath.Join(cluster, "cluster.yaml")
	text := strings.ReplaceAll(string(must(os.ReadFile(file))(t)), "https://etcd.example.svc:2379", etcd.Endpoint)
	check(t, os.WriteFile(file, []byte(text), 0o600))
	s.applyOverlay(filepath.Join(config, "external-etcd"))
	s.run(s.management, "wait", "-n", "quorate-clusters", "asc/external", "--for=condition=Available", "--timeout=120s")
	s.run(s.management, "wait", "-n", "quorate-clusters", "asc/external",
		"--for=condition=Progressing=false", "--timeout=120s")
	if ready := s.run(
		s.management, "get", "-n", "quorate-clusters", "asc/external", "-o", "jsonpath={.status.ready}",
	); ready != "2/2" {
		t.Errorf("the cluster on an external etcd has %s ready API servers, want 2/2", ready)
	}
	s.run(s.management, "delete", "-n", "quorate-clusters", "asc/external", "--timeout=60s")
}

// userRoles scales the cluster as a user with the role edit, and checks that a user with the role view can only read.
func (s *sandbox) userRoles(t *testing.T) {
	for _, role := range []string{"edit", "view"} {
		s.run(s.management, "create", "rolebinding", role, "--clusterrole="+role, "--user="+role)
	}
	may := func(user, verb, resource, subresource string) bool {
		output, err := s.try(s.management, "auth", "can-i", verb, resource, "--subresource="+subresource, "--as="+user)
		return err == nil && strings.HasPrefix(output, "yes")
	}
	s.waitFor("the aggregated roles", func() (bool, string) {
		return may("edit", "patch", "apiserverclusters", "scale") && may("view", "get", "apiserverclusters", "status"), ""
	})
	s.run(s.management, "scale", "apiservercluster/demo", "--replicas=3", "--as=edit")
	for _, subresource := range []string{"", "scale", "status"} {
		if may("view", "patch", "apiserverclusters", subresource) {
			t.Errorf("users with the role view can patch the subresource %q", subresource)
		}
	}
	if may("edit", "patch", "apiserverclusters", "status") {
		t.Error("users with the role edit can patch the status")
	}
}
