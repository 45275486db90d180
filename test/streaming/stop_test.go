package streaming

import (
	"io"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
)

// testStop stops this server while every kind of stream is open: all end, and none delays it.
func (b *bench) testStop(t *testing.T) {
	const quick = 10 * time.Second // requests in flight would get a minute
	var ends []chan error
	for _, executor := range protocols {
		ends = append(ends, b.openCommand(t, executor))
	}
	watch := dial(t, b.quorate, "/api/v1/namespaces?watch=true", nil)
	first := receive(t, watch)
	ends = append(ends, make(chan error, 1))
	go func(end chan error) {
		_, err := io.Copy(io.Discard, watch)
		end <- err
	}(ends[len(ends)-1])
	log, err := b.quorate.client.CoreV1().Pods(namespace).GetLogs("pod",
		&corev1.PodLogOptions{Container: "follow", Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ends = append(ends, make(chan error, 1))
	go func(end chan error) {
		_, err := io.Copy(io.Discard, log)
		end <- err
	}(ends[len(ends)-1])

	begun := time.Now()
	if err := b.server.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > quick {
		t.Errorf("stopping took %v", took)
	}
	if first == "" {
		t.Error("nothing was watched")
	}
	for i, end := range ends {
		select {
		case <-end:
		case <-time.After(patience):
			t.Errorf("stream %d has not ended", i)
		}
	}
	var told []string
	for range len(protocols) + 1 {
		select {
		case what := <-b.kubelet.ended:
			told = append(told, what)
		case <-time.After(patience):
		}
	}
	slices.Sort(told)
	if want := []string{"exec", "exec", "exec", "log"}; !slices.Equal(told, want) {
		t.Errorf("the kubelet observed the end of %v, want %v", told, want)
	}
}

// openCommand returns when a command runs; the channel receives the error of its stream.
func (b *bench) openCommand(t *testing.T, executor executor) chan error {
	e, err := executor(b.quorate.admin, b.quorate.execURL(&corev1.PodExecOptions{
		Command: []string{"wait"}, Stdin: true, Stdout: true,
	}))
	if err != nil {
		t.Fatal(err)
	}
	input, _ := io.Pipe()
	runs, end := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		end <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{
			Stdin: input, Stdout: onWrite(func() { runs <- struct{}{} }),
		})
	}()
	select {
	case <-runs:
	case err := <-end:
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("the command does not run")
	}
	return end
}
