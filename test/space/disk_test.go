package space

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/test/upstream"
)

// volume is a small file system in a mount namespace of its own, which a process keeps.
type volume struct {
	directory string // where the server sees it
	holder    int    // ID of the process
}

// mount mounts the volume, or skips the test if this user may not.
func mount(t *testing.T, directory string) volume {
	t.Helper()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	arguments := []string{
		"--mount", "sh", "-c", `mount -t tmpfs -o size=256m,mode=0700 tmpfs "$0" && echo mounted && exec sleep 3600`,
		directory,
	}
	if os.Getuid() != 0 {
		arguments = append([]string{"--user", "--map-root-user"}, arguments...)
	}
	command := exec.CommandContext(t.Context(), "unshare", arguments...)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Skip("no mount namespaces: ", err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Skipf("cannot mount a file system: %q, %v", line, err)
	}
	return volume{directory, command.Process.Pid}
}

// wrapper returns the command that runs another one in the namespace.
func (v volume) wrapper() []string {
	wrapper := []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", v.holder)}
	if os.Getuid() != 0 {
		wrapper = append(wrapper, fmt.Sprintf("--user=/proc/%d/ns/user", v.holder), "--preserve-credentials")
	}
	return append(wrapper, "--")
}

func (v volume) ballast() string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", v.holder), v.directory, "ballast")
}

// fill writes a file until the volume has at most left bytes.
func (v volume) fill(t *testing.T, left uint64) {
	t.Helper()
	file, err := os.OpenFile(v.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	chunk := make([]byte, 1<<20)
	for {
		var s syscall.Statfs_t
		if err := syscall.Fstatfs(int(file.Fd()), &s); err != nil {
			t.Fatal(err)
		}
		if s.Bavail*uint64(s.Bsize) <= left {
			return
		}
		if _, err := file.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: a server whose volume is filled by other files refuses to create objects, and serves everything else.
// When the volume is full to the last byte, and after a crash in that state, nothing is lost.
func TestFullDisk(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	directory := t.TempDir()
	v := mount(t, filepath.Join(directory, "member"))
	s := startIn(t, directory, v.wrapper())
	configMaps := s.client.CoreV1().ConfigMaps(namespace)
	for i := range 20 {
		s.must(s.create(configMap(fmt.Sprintf("before-%d", i), objectSize)))
	}
	v.fill(t, 30<<20)
	s.eventually("the refusal", func() error {
		err := s.create(configMap("refused", objectSize))
		if err == nil {
			s.must(configMaps.Delete(t.Context(), "refused", meta.DeleteOptions{}))
			return errors.New("an object was created")
		}
		s.mustRefuse(err, "the file system of etcd has")
		return nil
	})
	s.mustReport("[!]etcd-space warning: the file system of etcd is nearly full")
	s.must(configMaps.Delete(t.Context(), "before-0", meta.DeleteOptions{}))
	object, err := configMaps.Get(t.Context(), "before-1", meta.GetOptions{})
	s.must(err)
	object.Data = map[string]string{"less": "x"}
	_, err = configMaps.Update(t.Context(), object, meta.UpdateOptions{})
	s.must(err)

	v.fill(t, 0)
	s.mustRefuse(s.create(configMap("refused", 1)), "the file system of etcd has")
	committed := s.commits()
	s.must(configMaps.Delete(t.Context(), "before-2", meta.DeleteOptions{}))
	s.eventually("a commit", func() error {
		if s.commits() == committed {
			return errors.New("the deletion is not in the database")
		}
		return nil
	})
	if list, err := configMaps.List(t.Context(), meta.ListOptions{}); err != nil || count(list.Items) != 18 {
		t.Errorf("%d objects, %v", count(list.Items), err)
	}
	s.Kill()
	s.must(os.Remove(v.ballast()))
	s = startIn(t, directory, v.wrapper())
	s.StopAfter(t)
	list, err := s.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{})
	if err != nil || count(list.Items) != 18 {
		t.Errorf("%d objects after the restart, %v", count(list.Items), err)
	}
	s.must(s.create(configMap("after", objectSize)))
}

// commits returns the number of commits of etcd's database.
func (s *server) commits() string {
	s.Helper()
	_, count, _ := strings.Cut(s.get("/metrics"), "\netcd_disk_backend_commit_duration_seconds_count ")
	count, _, found := strings.Cut(count, "\n")
	if !found {
		s.Fatal("there is no metric of commits")
	}
	return count
}

// startIn starts a server in a directory, under a wrapper.
func startIn(t *testing.T, directory string, wrapper []string) *server {
	t.Helper()
	s := &server{T: t, directory: directory}
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	s.must(err)
	s.APIServer, err = upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Wrapper: wrapper,
	})
	s.must(err)
	t.Cleanup(s.Kill)
	s.Admin.QPS = -1
	s.client = kubernetes.NewForConfigOrDie(s.Admin)
	return s
}

// count returns the number of objects of the test.
func count(items []core.ConfigMap) (n int) {
	for _, item := range items {
		if strings.HasPrefix(item.Name, "before-") {
			n++
		}
	}
	return n
}
