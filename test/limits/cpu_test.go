package limits

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	// tick is the unit of the CPU times in /proc: USER_HZ is 100 on all platforms of Linux that Go supports.
	tick = 10 * time.Millisecond
	// clientPatience is the CPU time of the server after which the client of an attack closes its request. The patience of
	// clients is not a duration, because other processes may delay the server.
	clientPatience = 12 * time.Second
	// workPatience is the CPU time that the server's work may take after its client has gone, before the test stops
	// waiting.
	workPatience = 3 * time.Second
	// sampling is the time between two looks at the server.
	sampling = 50 * time.Millisecond
	// quietSamples is the number of consecutive samples without a running thread after which the server works on nothing.
	quietSamples = 5
)

// cpu returns the CPU time that the server's process has used.
func (s *server) cpu(t *testing.T) time.Duration {
	t.Helper()
	fields := statusOf(fmt.Sprintf("/proc/%d/stat", s.PID))
	if fields == nil {
		t.Fatal("the server has ended")
	}
	total := 0
	for _, field := range fields[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		total += ticks
	}
	return time.Duration(total) * tick
}

// statusOf returns the fields of a file of the kind /proc/PID/stat that follow the name of the program; nil without the
// file.
func statusOf(path string) []string {
	stat, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// isRunning reports whether a thread of the server runs or waits for a processor.
func (s *server) isRunning() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.PID))
	for _, thread := range threads {
		if fields := statusOf(thread); fields != nil && fields[0] == "R" {
			return true
		}
	}
	return false
}

// settle waits until the server works on nothing. It reports whether that happened before the server took more CPU
// time.
func (s *server) settle(t *testing.T, most time.Duration) bool {
	t.Helper()
	before, quiet := s.cpu(t), 0
	err := wait.PollUntilContextTimeout(t.Context(), sampling, patience, false, func(context.Context) (bool, error) {
		quiet++
		if s.isRunning() {
			quiet = 0
		}
		return quiet == quietSamples || s.cpu(t)-before > most, nil
	})
	return err == nil && quiet == quietSamples
}

// outcome is what one request of an attack has cost and returned.
type outcome struct {
	code    int // 0: the client gave up before it had a response
	message string
	cpu     time.Duration
	wall    time.Duration
	// settled is false if the server still used more than workPatience for the request after its client had gone.
	settled bool
}

func (o outcome) String() string {
	answer := fmt.Sprint(o.code)
	if o.code == 0 {
		answer = "none"
	}
	more := ""
	if !o.settled {
		more = "+"
	}
	return fmt.Sprintf("%6.2fs%-1s %6.2fs %4s %s", o.cpu.Seconds(), more, o.wall.Seconds(),
		answer, shorten(o.message, 150))
}

// shorten returns the beginning of a text in one line.
func shorten(text string, length int) string {
	text = strings.ReplaceAll(text, "\n", " ")
	if len(text) > length {
		return text[:length] + "..."
	}
	return text
}

// measure sends a request and waits until the server works on nothing. The client closes the request when the server
// has used the given CPU time.
func (s *server) measure(t *testing.T, client *http.Client, sent sent, most time.Duration) (result outcome) {
	t.Helper()
	s.settle(t, workPatience)
	before, began := s.cpu(t), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		result.code, result.message = s.send(ctx, t, client, sent)
	}()
	for waiting := true; waiting; {
		select {
		case <-answered:
			waiting = false
		case <-time.After(sampling):
			if s.cpu(t)-before > most {
				cancel()
			}
		}
	}
	result.wall = time.Since(began)
	result.settled = s.settle(t, workPatience)
	result.cpu = s.cpu(t) - before
	return result
}

// send sends a request, and returns the code and the message of the response; code 0 without a response.
func (s *server) send(ctx context.Context, t *testing.T, client *http.Client, sent sent) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, sent.method, s.Admin.Host+sent.path, bytes.NewReader(sent.body))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range sent.header {
		r.Header.Set(key, value)
	}
	if sent.contentType != "" {
		r.Header.Set("Content-Type", sent.contentType)
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	status := meta.Status{}
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		return response.StatusCode, status.Message
	}
	return response.StatusCode, fmt.Sprintf("(%d bytes)", len(body))
}

// prepare sends the requests that an attack needs before it.
func (s *server) prepare(t *testing.T, client *http.Client, requests []sent) {
	t.Helper()
	for _, sent := range requests {
		var code int
		var message string
		err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(
			ctx context.Context,
		) (bool, error) {
			code, message = s.send(ctx, t, client, sent)
			return code >= 200 && code < 300 || code == http.StatusConflict, nil
		})
		if err != nil {
			t.Fatalf("%s %s: %d %s", sent.method, sent.path, code, shorten(message, 1000))
		}
	}
}

// awaitDenial sends a request until it is denied.
func (s *server) awaitDenial(t *testing.T, client *http.Client, sent sent) {
	t.Helper()
	var code int
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(
		ctx context.Context,
	) (bool, error) {
		code, _ = s.send(ctx, t, client, sent)
		return code == http.StatusForbidden || code == http.StatusUnprocessableEntity, nil
	})
	if err != nil {
		t.Fatalf("%s %s is not denied: %d", sent.method, sent.path, code)
	}
}

// httpClient returns a client of the administrator without limits.
func (s *server) httpClient(t *testing.T) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Admin)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
