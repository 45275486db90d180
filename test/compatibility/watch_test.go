package compatibility

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// TestWatchOfASteadyStream resumes watches at the last revision that was received, including revisions of bookmarks,
// while objects are created continuously. No watch may miss an object.
func TestWatchOfASteadyStream(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	config := rest.CopyConfig(server.Admin)
	config.QPS = -1
	s := &stream{T: t, objects: kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")}

	const writers, watchers, length = 4, 4, 8 * time.Second
	ending, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	patient, cancel := context.WithTimeout(t.Context(), length+patience)
	defer cancel()
	var writing, watching sync.WaitGroup
	for writer := range writers {
		writing.Go(func() { s.write(ending, writer) })
	}
	seen := make([]map[string]bool, watchers)
	for i := range seen {
		// A watch of three seconds or more gets a bookmark in the middle, at a different time for each watcher.
		watching.Go(func() { seen[i] = s.watchToTheEnd(patient, int64(3+i)) })
	}
	writing.Wait()
	s.create(lastName)
	watching.Wait()
	for i := range seen {
		s.mustHave(i, seen[i])
	}
}

// lastName is the name of the object that is created last. A watcher that has received it must have received all
// others.
const lastName = "the-last"

// stream contains the created objects, which all watchers must receive.
type stream struct {
	*testing.T
	objects typed.ConfigMapInterface
	created sync.Map // by name
}

// write creates objects one at a time until ctx ends.
func (s *stream) write(ctx context.Context, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		if !s.create(fmt.Sprintf("object-%d-%05d", writer, i)) {
			return
		}
	}
}

func (s *stream) create(name string) bool {
	if _, err := s.objects.Create(
		s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{},
	); err != nil {
		s.Errorf("create %s: %v", name, err)
		return false
	}
	s.created.Store(name, true)
	return true
}

// watchToTheEnd runs consecutive watches that last the given number of seconds, and returns the names of all objects
// that were received up to the last one.
func (s *stream) watchToTheEnd(ctx context.Context, seconds int64) map[string]bool {
	seen := map[string]bool{}
	for revision := "1"; revision != "" && !seen[lastName]; {
		revision = s.watchFrom(ctx, seconds, revision, seen)
	}
	return seen
}

// watchFrom returns the revision at which to resume, or "" after an error.
func (s *stream) watchFrom(ctx context.Context, seconds int64, revision string, seen map[string]bool) string {
	changes, err := s.objects.Watch(ctx, metav1.ListOptions{
		ResourceVersion: revision, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err != nil {
		s.Errorf("watch from %s: %v", revision, err)
		return ""
	}
	defer changes.Stop()
	for event := range changes.ResultChan() {
		object, err := meta.Accessor(event.Object)
		if event.Type == watch.Error || err != nil {
			s.Errorf("watch from %s: %v", revision, event.Object)
			return ""
		}
		revision = object.GetResourceVersion()
		if event.Type == watch.Added {
			seen[object.GetName()] = true
		}
		if seen[lastName] {
			break
		}
	}
	return revision
}

// mustHave reports the objects that a watcher has missed although they were created before the last one.
func (s *stream) mustHave(watcher int, seen map[string]bool) {
	missed := []string{}
	s.created.Range(func(name, _ any) bool {
		if !seen[name.(string)] {
			missed = append(missed, name.(string))
		}
		return true
	})
	if len(missed) > 0 {
		s.Errorf("watcher %d saw %d objects and missed %d: %q", watcher, len(seen), len(missed), missed[:min(5, len(missed))])
	}
}
