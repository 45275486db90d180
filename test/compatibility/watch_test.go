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
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"quorate.dev/test/genuine"
)

// TestWatchOfASteadyStream goes on, watch after watch, from what the last one has told, bookmarks included, while
// objects are created without a pause: none of them may be passed over.
func TestWatchOfASteadyStream(t *testing.T) {
	directory := t.TempDir()
	pki, err := genuine.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := genuine.StartQuorate(t.Context(), genuine.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	config := rest.CopyConfig(server.Admin)
	config.QPS = -1
	objects := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")

	// A watch of four seconds has a bookmark in the middle.
	const writers, watchers, length = 4, 4, 8 * time.Second
	var created sync.Map
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("object-%d-%05d", writer, i)
				if _, err := objects.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
					t.Errorf("create %s: %v", name, err)
					return
				}
				created.Store(name, true)
			}
		})
	}
	var watching sync.WaitGroup
	seen := make([]map[string]bool, watchers)
	for i := range watchers {
		seen[i] = map[string]bool{}
		watching.Go(func() {
			for revision := "1"; ctx.Err() == nil && t.Context().Err() == nil; {
				changes, err := objects.Watch(t.Context(), metav1.ListOptions{
					ResourceVersion: revision, AllowWatchBookmarks: true, TimeoutSeconds: ptr.To[int64](4),
				})
				if err != nil {
					t.Errorf("watch from %s: %v", revision, err)
					return
				}
				for event := range changes.ResultChan() {
					if event.Type == watch.Error {
						t.Errorf("watch from %s: %v", revision, event.Object)
						return
					}
					object, err := meta.Accessor(event.Object)
					if err != nil {
						t.Error(err)
						return
					}
					revision = object.GetResourceVersion()
					if event.Type == watch.Added {
						seen[i][object.GetName()] = true
					}
				}
			}
		})
	}
	writing.Wait()
	watching.Wait()
	created.Range(func(name, _ any) bool {
		for i := range seen {
			if !seen[i][name.(string)] {
				t.Errorf("watcher %d missed %s", i, name)
				return false
			}
		}
		return true
	})
}
