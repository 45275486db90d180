package operator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/faults/isolation"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	pollInterval   = 100 * time.Millisecond
	requestTimeout = 5 * time.Second
)

// sandbox is a process of `quorate sandbox` with the cluster demo.
type sandbox struct {
	log        func(format string, arguments ...any)
	begin      time.Time
	binary     string
	directory  string
	management *rest.Config
	objects    ctrl.Client // of the management API server
	disks      *disks      // nil: volumes are folders
}

func (s *sandbox) logf(format string, arguments ...any) {
	s.log("%6.2fs  "+format, append([]any{time.Since(s.begin).Seconds()}, arguments...)...)
}

// startSandbox starts a sandbox, which ends with the test.
func startSandbox(t *testing.T) *sandbox {
	t.Helper()
	s := &sandbox{log: t.Logf, begin: time.Now(), directory: filepath.Join(t.TempDir(), "quorate")}
	var err error
	if s.binary, err = upstream.Quorate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.startDisks(t)
	command := exec.Command(s.binary, "sandbox", "--json", "--dir", s.directory)
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(command.Process.Signal(os.Interrupt), command.Wait()); err != nil {
			t.Errorf("the sandbox did not stop: %v", err)
		}
	})
	kubeconfig, err := awaitSandbox(bufio.NewScanner(output))
	if err == nil {
		s.management, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err == nil {
		s.objects, err = ctrl.New(s.management, ctrl.Options{})
	}
	if err == nil {
		err = v1alpha1.AddToScheme(s.objects.Scheme())
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.disks != nil {
		s.disks.follow(s.claimed)
	}
	return s
}

// startDisks mounts volumes on the sandbox's folders, if that is permitted, until the test ends.
func (s *sandbox) startDisks(t *testing.T) {
	t.Helper()
	if err := isolation.Mounts(t); err != nil {
		t.Logf("volumes are folders, without faults of disks: %v", err)
		return
	}
	s.disks = &disks{root: filepath.Join(s.directory, "volumes"), logf: s.logf, all: map[string]*device{}}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	var mounting sync.WaitGroup
	mounting.Go(func() { s.disks.run(ctx) })
	t.Cleanup(func() { end(); mounting.Wait() })
}

// awaitSandbox returns the kubeconfig of the management API server when the sandbox is ready, and drains further
// output.
func awaitSandbox(events *bufio.Scanner) (kubeconfig string, err error) {
	for events.Scan() {
		var event struct{ Event, Kubeconfig string }
		if err := json.Unmarshal(events.Bytes(), &event); err != nil {
			return "", err
		}
		if event.Event == "ready" {
			go func() {
				for events.Scan() {
				}
			}()
			return event.Kubeconfig, nil
		}
	}
	return "", errors.New("the sandbox exited before it was ready")
}

func (s *sandbox) kubeconfig(cluster string) string {
	return filepath.Join(s.directory, cluster+".kubeconfig")
}

// client returns a client of a cluster, which follows the cluster's kubeconfig and has a connection of its own.
func (s *sandbox) client(cluster string) (rest.Interface, error) {
	configuration, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig(cluster))
	if err != nil {
		return nil, err
	}
	return check.NewClient(&rest.Config{Host: configuration.Host, Transport: &follower{file: s.kubeconfig(cluster)}})
}

// follower sends each request with the present content of a kubeconfig.
type follower struct {
	file string

	mu      sync.Mutex
	content []byte
	current http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *follower) RoundTrip(request *http.Request) (*http.Response, error) {
	transport, err := f.transport()
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (f *follower) transport() (http.RoundTripper, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content, err := os.ReadFile(f.file)
	if err != nil || bytes.Equal(content, f.content) {
		return f.current, err
	}
	configuration, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, err
	}
	configuration.Dial = (&net.Dialer{Timeout: requestTimeout}).DialContext
	transport, err := rest.TransportFor(configuration)
	if err == nil {
		f.content, f.current = content, transport
	}
	return transport, err
}

// cluster returns a cluster.
func (s *sandbox) cluster(ctx context.Context, name string) (*v1alpha1.ApiServerCluster, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	cluster := &v1alpha1.ApiServerCluster{}
	return cluster, s.objects.Get(ctx, ctrl.ObjectKey{Namespace: "default", Name: name}, cluster)
}

// patch merges a text into the spec of demo.
func (s *sandbox) patch(ctx context.Context, spec string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	return s.objects.Patch(ctx, cluster, ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))
}

// settled returns an error as long as a cluster does not have the given replicas, all of them healthy voters.
func settled(c *v1alpha1.ApiServerCluster, replicas int) error {
	voters := 0
	for _, member := range c.Status.Members {
		if member.Ready && (member.Role == "leader" || member.Role == "voter") {
			voters++
		}
	}
	conditions := c.Status.Conditions
	if c.Status.ObservedGeneration == c.Generation && int(c.Status.ReadyReplicas) == replicas && voters == replicas &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Progressing) &&
		meta.IsStatusConditionTrue(conditions, v1alpha1.Available) &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Degraded) &&
		meta.IsStatusConditionTrue(conditions, v1alpha1.EtcdQuorum) {
		return nil
	}
	return fmt.Errorf("%s has %d ready replicas and %d voters, generation %d of %d is observed: %v",
		c.Name, c.Status.ReadyReplicas, voters, c.Status.ObservedGeneration, c.Generation, conditions)
}

// eventually calls a function until it returns nil or ctx ends.
func eventually(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil || !check.Pause(ctx, pollInterval) {
			return err
		}
	}
}

// await waits until a cluster is settled.
func (s *sandbox) await(ctx context.Context, name string, replicas int) error {
	return eventually(ctx, func() error {
		cluster, err := s.cluster(ctx, name)
		if err != nil {
			return err
		}
		return settled(cluster, replicas)
	})
}

// members returns the names of demo's members, the leader first.
func (s *sandbox) members(ctx context.Context) (names []string, err error) {
	cluster, err := s.cluster(ctx, "demo")
	if err != nil {
		return nil, err
	}
	for _, member := range cluster.Status.Members {
		if member.Role == "leader" {
			names = slices.Insert(names, 0, member.Name)
		} else {
			names = append(names, member.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the cluster has no members now")
	}
	return names, nil
}

// process returns the process of the sandbox that has an argument, and its command.
func (s *sandbox) process(argument string) (id int, command []string, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, nil, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has exited
		}
		command := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		if strings.Contains(string(line), s.directory+"/") && slices.Contains(command, argument) {
			_, err := fmt.Sscanf(file, "/proc/%d/cmdline", &id)
			return id, command, err
		}
	}
	return 0, nil, fmt.Errorf("no process has the argument %s", argument)
}

// signal sends a signal to the process of the sandbox that has an argument.
func (s *sandbox) signal(argument string, signal syscall.Signal) (id int, err error) {
	id, _, err = s.process(argument)
	if err != nil {
		return 0, err
	}
	return id, syscall.Kill(id, signal)
}

const operatorArgument = "--image=quorate"

func memberArgument(name string) string { return "--etcd-name=" + name }
