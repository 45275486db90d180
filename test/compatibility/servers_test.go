// Package compatibility runs Quorate and kube-apiserver on one etcd at the same time: each reads, watches and deletes
// objects of the other, and stores the same bytes.
package compatibility

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

const (
	namespace = "compatibility"

	// patience bounds the waits for asynchronous changes, such as the serving of a new kind.
	patience     = 20 * time.Second
	pollInterval = 50 * time.Millisecond
)

// server sends requests to one of the two API servers, without a client library, so that the bytes of responses are
// compared.
type server struct {
	name string
	host string
	http *http.Client
}

// servers are two API servers that share one etcd.
type servers struct {
	kubernetes, quorate *server
	etcd                *clientv3.Client
	// quorate is the process of Quorate.
	process *upstream.APIServer
}

// startServers starts both servers with additional arguments.
func startServers(t *testing.T, arguments ...string) *servers {
	return startServersWith(t, arguments, arguments)
}

// startServersWith starts each server with its own arguments.
func startServersWith(t *testing.T, ofKubernetes, ofQuorate []string) *servers {
	return startServersOn(t, func(*clientv3.Client) {}, ofKubernetes, ofQuorate)
}

// startServersOn starts both servers on an etcd that is filled first.
func startServersOn(t *testing.T, fill func(*clientv3.Client), ofKubernetes, ofQuorate []string) *servers {
	ctx, directory := t.Context(), t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(ctx, directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	fill(client)
	options := upstream.Options{Directory: directory, PKI: pki, Etcd: etcd.Endpoint, Arguments: ofKubernetes}
	kubernetes, err := upstream.StartKubernetes(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	kubernetes.StopAfter(t)
	options.Arguments = ofQuorate
	quorate, err := upstream.StartQuorate(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	quorate.StopAfter(t)
	return &servers{
		kubernetes: newServer(t, "kube-apiserver", kubernetes.Admin), quorate: newServer(t, "quorate", quorate.Admin),
		etcd: client, process: quorate,
	}
}

func newServer(t *testing.T, name string, admin *rest.Config) *server {
	admin.UserAgent = "compatibility/1" // the field manager of writes through both servers
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	return &server{name: name, host: admin.Host, http: client}
}

// object is a decoded JSON object.
type object map[string]any

func (s *server) send(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", "application/json")
	return s.http.Do(request)
}

// call sends a request, and returns the status code and the object of the response.
func (s *server) call(ctx context.Context, method, path, contentType string, body []byte) (int, object, error) {
	response, err := s.send(ctx, method, path, contentType, body)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, err
	}
	var decoded object
	if err := json.Unmarshal(content, &decoded); err != nil {
		return response.StatusCode, nil, fmt.Errorf("%s %s %s: %s %q", s.name, method, path, response.Status, content)
	}
	return response.StatusCode, decoded, nil
}

// must is like call, for a request that must succeed.
func (s *server) must(t *testing.T, method, path, contentType, body string) object {
	t.Helper()
	status, answer, err := s.call(t.Context(), method, path, contentType, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if status >= http.StatusMultipleChoices {
		t.Fatalf("%s: %s %s: %d %v", s.name, method, path, status, answer["message"])
	}
	return answer
}

func (s *server) create(t *testing.T, collection, body string) object {
	t.Helper()
	return s.must(t, http.MethodPost, collection, "application/json", body)
}

func (s *server) get(t *testing.T, path string) object {
	t.Helper()
	return s.must(t, http.MethodGet, path, "", "")
}

func (s *server) patch(t *testing.T, path, body string) object {
	t.Helper()
	return s.must(t, http.MethodPatch, path, "application/merge-patch+json", body)
}

// delete deletes an object, without finalizers for a garbage collector, because none runs.
func (s *server) delete(t *testing.T, path string) {
	t.Helper()
	s.must(t, http.MethodDelete, path+"?propagationPolicy=Background&gracePeriodSeconds=0", "", "")
}

func (s *server) mustBeGone(t *testing.T, path string) {
	t.Helper()
	status, answer, err := s.call(t.Context(), http.MethodGet, path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if status != http.StatusNotFound {
		t.Errorf("%s still has %s: %d %v", s.name, path, status, answer)
	}
}

// awaitServed waits until a path is served.
func (s *server) awaitServed(t *testing.T, path string) {
	t.Helper()
	var last int
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(
		ctx context.Context,
	) (bool, error) {
		status, _, _ := s.call(ctx, http.MethodGet, path, "", nil)
		last = status
		return status == http.StatusOK, nil
	})
	if err != nil {
		t.Fatalf("%s does not serve %s: %v, last status %d", s.name, path, err, last)
	}
}

// event is a watch event.
type event struct {
	Type   string
	Object object
}

// watch starts a watch at the current state, and returns a function that reads the next event.
func (s *server) watch(t *testing.T, collection, name string) (next func() event) {
	t.Helper()
	list := s.get(t, collection+"?limit=1")
	version := list["metadata"].(map[string]any)["resourceVersion"].(string)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	path := collection + "?watch=1&fieldSelector=metadata.name%3D" + name + "&resourceVersion=" + version
	response, err := s.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		response.Body.Close()
	})
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: watch %s: %s", s.name, path, response.Status)
	}
	decoder := json.NewDecoder(response.Body)
	return func() event {
		t.Helper()
		var e event
		if err := decoder.Decode(&e); err != nil {
			t.Fatalf("%s: watch %s: %v", s.name, path, errors.Join(err, ctx.Err()))
		}
		return e
	}
}
