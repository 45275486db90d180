package compatibility

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

// writeShared removes the objects of the former release through Quorate, and then writes each resource through both
// servers.
func (s *skew) writeShared(t *testing.T) {
	for _, name := range s.shared {
		t.Run(title(name), func(t *testing.T) {
			s.remove(t, s.quorate, name)
			s.quorate.create(t, s.collection(name), s.stub(t, name))
			stored := s.storedVersion(t, name)
			s.remove(t, s.quorate, name)
			if !s.reads(name, stored) {
				s.newer = append(s.newer, title(name)+" as "+stored.String())
				return
			}
			s.life(t, name, s.quorate, s.former)
			s.life(t, name, s.former, s.quorate)
		})
	}
}

// reads reports whether the former release serves a resource in a version, or stores it in that version.
func (s *skew) reads(name schema.GroupVersionResource, version schema.GroupVersion) bool {
	_, served := s.kinds[version.WithResource(name.Resource)]
	return served || s.entries[name].Stored.GroupVersion() == version
}

// storedVersion returns the version in which the object of a resource is stored.
func (s *skew) storedVersion(t *testing.T, name schema.GroupVersionResource) schema.GroupVersion {
	t.Helper()
	response, err := s.etcd.Get(t.Context(), s.entries[name].Path)
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Kvs) != 1 {
		t.Fatalf("nothing is stored under %s", s.entries[name].Path)
	}
	var stored runtime.Unknown
	if text, isProtobuf := bytes.CutPrefix(response.Kvs[0].Value, []byte("k8s\x00")); isProtobuf {
		err = stored.Unmarshal(text)
	} else {
		err = json.Unmarshal(response.Kvs[0].Value, &stored.TypeMeta)
	}
	if err != nil {
		t.Fatal(err)
	}
	version, err := schema.ParseGroupVersion(stored.APIVersion)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// life creates an object through one server, changes it through both, and deletes it through the other. Watches of both
// servers must show each change exactly as the server that wrote it has returned it. Controllers of the servers may
// write the object in between.
func (s *skew) life(t *testing.T, name schema.GroupVersionResource, writer, other *server) {
	t.Helper()
	collection, object := s.collection(name), path.Base(s.entries[name].Path)
	watches := map[*server]func() event{}
	for _, server := range []*server{writer, other} {
		watches[server] = server.watch(t, collection, object)
	}
	address := collection + "/" + object
	written := []event{{"ADDED", writer.create(t, collection, s.stub(t, name))}}
	s.mustAgree(t, name, address)
	for _, server := range []*server{other, writer} {
		label := `{"metadata":{"labels":{"changed-by":"` + strings.ReplaceAll(server.name, " ", "-") + `"}}}`
		written = append(written, event{"MODIFIED", server.patch(t, address, label)})
		s.mustAgree(t, name, address)
	}
	s.remove(t, other, name)
	for _, server := range []*server{writer, other} {
		server.mustBeGone(t, address)
		s.mustHaveSeen(t, name, server.name, untilDeleted(watches[server]), written)
	}
}

// mustHaveSeen fails the test unless a watch has shown the written objects in their order.
func (s *skew) mustHaveSeen(
	t *testing.T, name schema.GroupVersionResource, watcher string, seen, written []event,
) {
	t.Helper()
	all := seen
	for _, want := range written {
		at := -1
		for i, e := range seen {
			if metadata(e.Object)["resourceVersion"] == metadata(want.Object)["resourceVersion"] {
				at = i
				break
			}
		}
		if at < 0 {
			t.Errorf("a watch of %s did not show %v, but %v", watcher, want, all)
			return
		}
		got := seen[at]
		s.withoutAdded(name, want.Object)
		s.withoutAdded(name, got.Object)
		mustEqual(t, "an event of "+watcher, want, got)
		seen = seen[at+1:]
	}
}

// mustAgree waits until both servers return the same for a path: controllers of the servers may write in between.
func (s *skew) mustAgree(t *testing.T, name schema.GroupVersionResource, path string) {
	t.Helper()
	var difference string
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		difference = cmp.Diff(
			s.withoutAdded(name, s.former.get(t, path)), s.withoutAdded(name, s.quorate.get(t, path)))
		return difference == "", nil
	})
	if err != nil {
		t.Errorf("GET %s, %s (-) and quorate (+):\n%s", path, s.former.name, difference)
	}
}

// remove deletes the object of a resource through a server, if it exists. No controller of the test removes finalizers,
// so that remove then deletes the key of the object from etcd.
func (s *skew) remove(t *testing.T, writer *server, name schema.GroupVersionResource) {
	t.Helper()
	e := s.entries[name]
	address := s.collection(name) + "/" + path.Base(e.Path)
	query := "?propagationPolicy=Background&gracePeriodSeconds=0"
	status, answer, err := writer.call(t.Context(), http.MethodDelete, address+query, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if status >= http.StatusMultipleChoices && status != http.StatusNotFound {
		t.Fatalf("%s: DELETE %s: %d %v", writer.name, address, status, answer["message"])
	}
	if _, err := s.etcd.Delete(t.Context(), e.Path); err != nil {
		t.Fatal(err)
	}
}
