package upstream

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
)

func TestVersionFlags(t *testing.T) {
	want := "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X " +
		"k8s.io/component-base/version.gitTreeState=clean -X k8s.io/component-base/version.gitMajor=1 -X " +
		"k8s.io/component-base/version.gitMinor=36"
	if got := versionFlags("v1.36.3"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPrebuilt(t *testing.T) {
	directory := t.TempDir()
	t.Setenv(Prebuilt, directory)
	if _, ok := prebuilt("kubectl"); ok {
		t.Error("found a binary that is not there")
	}
	want := filepath.Join(directory, "kubectl")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, ok := prebuilt("kubectl"); !ok || got != want {
		t.Errorf("got %q, %v", got, ok)
	}
}

func TestOverride(t *testing.T) {
	got := override([]string{"--a=1", "--b=2"}, []string{"--a=3", "--c=4"})
	if want := []string{"--b=2", "--a=3", "--c=4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRetryTakesOtherPorts(t *testing.T) {
	var seen []int
	_, err := retry(func(ports []int) (int, error) {
		seen = append(seen, ports[0])
		if len(seen) < 3 {
			return 0, errPortTaken
		}
		return ports[0], nil
	})
	if err != nil || len(seen) != 3 {
		t.Errorf("%d attempts: %v", len(seen), err)
	}
	if _, err := retry(func([]int) (int, error) { return 0, errPortTaken }); !errors.Is(err, errPortTaken) {
		t.Errorf("endless collision gave %v", err)
	}
}

func TestKubernetes(t *testing.T) {
	NeedsProcesses(t)
	ctx, directory := t.Context(), t.TempDir()
	etcd, err := StartEtcd(ctx, directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	pki, err := NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := StartKubernetes(ctx, Options{Directory: directory, PKI: pki, Etcd: etcd.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	info, err := kubernetes.NewForConfigOrDie(server.Admin).Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	workspace, err := inspect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := workspace.module(ctx, "Version", kubernetesModule); err != nil || info.GitVersion != want {
		t.Errorf("version %q, want %q: %v", info.GitVersion, want, err)
	}
	log, err := os.ReadFile(server.Log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "127.0.0.1") || server.Tail() == "" {
		t.Errorf("the log says nothing of its address:\n%s", server.Tail())
	}
}
