package sandbox

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/sandbox/management"
)

func TestSummaryAndSettled(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Message: "because"}
	}
	members := []v1alpha1.MemberStatus{{Name: "demo-0", Role: "voter"}, {Name: "demo-1", Role: "leader"}}
	available := []metav1.Condition{condition(v1alpha1.Available, metav1.ConditionTrue)}
	tests := []struct {
		name    string
		spec    int32
		deleted bool
		status  v1alpha1.ApiServerClusterStatus
		want    string
		settled bool
	}{
		{"new", 3, false, v1alpha1.ApiServerClusterStatus{}, "0/3 ready", false},
		{
			"one voter", 1, false,
			v1alpha1.ApiServerClusterStatus{ObservedGeneration: 2, ReadyReplicas: 1, Voters: 1, Conditions: available},
			"1/1 ready, etcd 1 voter", true,
		},
		{
			"complete", 3, false,
			v1alpha1.ApiServerClusterStatus{ObservedGeneration: 2, ReadyReplicas: 3, Voters: 3, Members: members,
				Conditions: available}, "3/3 ready, etcd 3 voters, leader demo-1", true,
		},
		{
			"stale", 3, false,
			v1alpha1.ApiServerClusterStatus{ObservedGeneration: 1, ReadyReplicas: 3, Voters: 3, Conditions: available},
			"3/3 ready, etcd 3 voters", false,
		},
		{
			"progressing", 3, false,
			v1alpha1.ApiServerClusterStatus{ObservedGeneration: 2, ReadyReplicas: 3,
				Conditions: append(available, condition(v1alpha1.Progressing, metav1.ConditionTrue))}, "3/3 ready", false,
		},
		{
			"degraded", 3, false,
			v1alpha1.ApiServerClusterStatus{Conditions: []metav1.Condition{condition(v1alpha1.Degraded, metav1.ConditionTrue)}},
			"0/3 ready, degraded: because", false,
		},
		{"deleted", 3, true, v1alpha1.ApiServerClusterStatus{ReadyReplicas: 2}, "2/3 ready, being deleted", false},
	}
	for _, test := range tests {
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: test.status}
		cluster.Spec.Replicas = ptr.To(test.spec)
		if test.deleted {
			cluster.DeletionTimestamp = &metav1.Time{}
		}
		if got := summary(cluster); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if got := settled(cluster); got != test.settled {
			t.Errorf("%s: settled %t", test.name, got)
		}
	}
}

func TestBrief(t *testing.T) {
	for message, want := range map[string]string{
		"short": "short", "two\nlines": "two", strings.Repeat("ä", 60): strings.Repeat("ä", 50) + "...",
		"x" + strings.Repeat("ä", 60): "x" + strings.Repeat("ä", 49) + "...",
	} {
		if got := brief(message); got != want {
			t.Errorf("brief(%q): %q, want %q", message, got, want)
		}
	}
}

func TestLocalKubeconfig(t *testing.T) {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["demo"] = &clientcmdapi.Cluster{
		Server: "https://demo.default.svc:6443", CertificateAuthorityData: []byte("CA"),
	}
	kubeconfig.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "admin of demo"}
	kubeconfig.Contexts["demo"] = &clientcmdapi.Context{Cluster: "demo", AuthInfo: "admin"}
	kubeconfig.CurrentContext = "demo"
	kubeconfig.Clusters["address"] = &clientcmdapi.Cluster{Server: "https://10.1.2.3:6443"}
	content, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	content, err = localKubeconfig(content, "team-a-demo", netip.MustParseAddrPort("127.70.128.9:6443"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := clientcmd.Load(content)
	if err != nil {
		t.Fatal(err)
	}
	named, numbered := got.Clusters["team-a-demo"], got.Clusters["address"]
	if named.Server != "https://127.70.128.9:6443" || named.TLSServerName != "demo.default.svc" ||
		string(named.CertificateAuthorityData) != "CA" {
		t.Errorf("got %+v", named)
	}
	current := got.Contexts[got.CurrentContext]
	if got.CurrentContext != "team-a-demo" || current.Cluster != "team-a-demo" ||
		got.AuthInfos[current.AuthInfo].Token != "admin of demo" {
		t.Errorf("got %+v", got)
	}
	if numbered.Server != "https://127.70.128.9:6443" || numbered.TLSServerName != "" {
		t.Errorf("got %+v", numbered)
	}
	if _, err := localKubeconfig([]byte("{"), "demo", netip.AddrPort{}); err == nil {
		t.Error("an invalid kubeconfig was accepted")
	}
}

func TestHomeIsLockedAndPersistent(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "box")
	first, err := openHome(directory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openHome(directory); err == nil || !strings.Contains(err.Error(), "running") {
		t.Errorf("a second process opened the directory: %v", err)
	}
	if err := remove(directory); err == nil || !strings.Contains(err.Error(), "running") {
		t.Errorf("a running sandbox was deleted: %v", err)
	}
	first.close()
	second, err := openHome(directory)
	if err != nil {
		t.Fatal(err)
	}
	if second.state != first.state || second.fresh {
		t.Errorf("got %+v, had %+v", second.state, first.state)
	}
	second.close()
	if err := remove(directory); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(directory); !os.IsNotExist(err) {
		t.Errorf("the directory still exists: %v", err)
	}
}

func TestHomeErrors(t *testing.T) {
	directory := t.TempDir()
	if err := remove(directory); err == nil || !strings.Contains(err.Error(), "not the directory of a sandbox") {
		t.Errorf("deleting a directory without a sandbox: %v", err)
	}
	h, err := openHome(directory)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
	socket, err := net.Listen("tcp4", netip.AddrPortFrom(h.state.Network.Server(), management.SecurePort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if _, err := openHome(directory); err == nil || !strings.Contains(err.Error(), "in use") ||
		!strings.Contains(err.Error(), "sandbox delete") {
		t.Errorf("an address in use: %v", err)
	}
	os.WriteFile(filepath.Join(directory, stateFile), []byte("{"), 0o600)
	if _, err := openHome(directory); err == nil || !strings.Contains(err.Error(), "read ") {
		t.Errorf("a corrupted state file: %v", err)
	}
	os.Remove(filepath.Join(directory, stateFile))
	os.Mkdir(filepath.Join(directory, "management"), 0o700)
	if _, err := openHome(directory); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("a missing state file: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{
		{"--replicas=0"}, {"nonsense"}, {"--unknown"}, {"delete", "extra"}, {
			"delete", "--dir", filepath.Join(t.TempDir(), "none"),
		},
	} {
		if err := Run(t.Context(), args); err == nil {
			t.Errorf("no error for %v", args)
		}
	}
}

// TestImages checks which values of --image are accepted, and that demo is created with an image only if there is
// exactly one.
func TestImages(t *testing.T) {
	directory := t.TempDir()
	program := filepath.Join(directory, "quorate")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(directory)
	for file, want := range map[string]string{
		program:     "",
		directory:   "must be the absolute path of a program",
		"quorate":   "must be the absolute path of a program",
		"/none/one": "no such file or directory",
	} {
		err := checkImages(map[string]string{"next": file})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got the error %v, want %q", file, err, want)
		}
	}
	for _, test := range []struct {
		images map[string]string
		want   any
	}{
		{nil, nil},
		{map[string]string{"next": program}, "next"},
		{map[string]string{"next": program, "last": program}, nil},
	} {
		s := sandbox{settings: settings{replicas: 1, images: test.images}}
		if got := s.demoSpec()["image"]; got != test.want {
			t.Errorf("with the images %v, demo has the image %v, want %v", test.images, got, test.want)
		}
	}
}
