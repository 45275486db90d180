package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/sandbox/source"
)

// fixture is a Pod with volumes and the objects that they refer to.
type fixture struct {
	*testing.T
	configMaps, claims, volumes cache.Indexer
	folders                     *Folders
	root                        string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	indexer := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	f := &fixture{T: t, configMaps: indexer(), claims: indexer(), volumes: indexer(), root: t.TempDir()}
	f.folders = NewFolders(f.root, Source{
		Objects: source.Objects{ConfigMaps: corelisters.NewConfigMapLister(f.configMaps)},
		Claims:  corelisters.NewPersistentVolumeClaimLister(f.claims),
		Volumes: corelisters.NewPersistentVolumeLister(f.volumes),
	})
	return f
}

// prepare prepares a Pod with one volume.
func (f *fixture) prepare(volume corev1.VolumeSource) error {
	return f.folders.Prepare(f.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team"},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: volume}}},
	})
}

// mustPrepare prepares a Pod with one volume, and returns the folder of the volume.
func (f *fixture) mustPrepare(volume corev1.VolumeSource) string {
	f.Helper()
	if err := f.prepare(volume); err != nil {
		f.Fatal(err)
	}
	path, ok := f.folders.Path("data")
	if !ok {
		f.Fatal("a prepared volume has no folder")
	}
	return path
}

func (f *fixture) setConfigMap(value string) {
	f.Helper()
	err := f.configMaps.Update(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "config"}, Data: map[string]string{"key": value},
	})
	if err != nil {
		f.Fatal(err)
	}
}

// TestPreparedConfigMapFollowsItsObject checks that the files change with the object, and only then: programs reload
// their configuration when the link ..data changes.
func TestPreparedConfigMapFollowsItsObject(t *testing.T) {
	f := newFixture(t)
	volume := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: reference("config")}}
	var links []string
	for _, value := range []string{"first", "first", "second"} {
		f.setConfigMap(value)
		folder := f.mustPrepare(volume)
		expect(t, folder, map[string]string{"key": value})
		link, err := os.Readlink(filepath.Join(folder, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, link)
	}
	if links[0] != links[1] || links[1] == links[2] {
		t.Errorf("got the links %q, want a new one for the second value only", links)
	}
}

// TestPreparedFolders checks that the folders of volumes without API objects keep their content.
func TestPreparedFolders(t *testing.T) {
	hostPath := t.TempDir()
	for name, test := range map[string]struct {
		volume corev1.VolumeSource
		want   string // folder; empty: a folder below the folder of the Pod
	}{
		"emptyDir": {volume: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		"hostPath": {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: hostPath}}, hostPath},
	} {
		f := newFixture(t)
		folder := f.mustPrepare(test.volume)
		if within, err := filepath.Rel(f.root, folder); folder != test.want && (test.want != "" || err != nil ||
			!filepath.IsLocal(within)) {
			t.Errorf("%s: the folder is %s", name, folder)
		}
		if err := os.WriteFile(filepath.Join(folder, "kept"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if again := f.mustPrepare(test.volume); again != folder {
			t.Errorf("%s: the folder changed from %s to %s", name, folder, again)
		}
		expect(t, folder, map[string]string{"kept": "1"})
	}
}

// TestVolumesThatCannotBePrepared checks that a Pod does not start without a volume, and that the error, which is the
// message of the event FailedMount, names the volume and the cause.
func TestVolumesThatCannotBePrepared(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	bound := func() *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "v"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
	}
	pending := bound()
	pending.Status.Phase = corev1.ClaimPending
	deleted := bound()
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolumeSource
		of     corev1.VolumeSource
		want   string
	}{
		"no ConfigMap": {
			of: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: reference("config"),
			}},
			want: `configmap "config" not found`,
		},
		"no folder": {
			of:   corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: missing}},
			want: missing + ": no such file",
		},
		"another kind": {
			of: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, want: "does not support this kind of volume",
		},
		"no claim":      {of: claim, want: `persistentvolumeclaim "data" not found`},
		"pending claim": {of: claim, claim: pending, want: `persistentvolumeclaim "data" is not bound`},
		"deleted claim": {of: claim, claim: deleted, want: `persistentvolumeclaim "data" is not bound`},
		"lost volume":   {of: claim, claim: bound(), want: `persistentvolume "v" not found`},
		"volume of another kind": {
			of: claim, claim: bound(), volume: &corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}},
			want: `persistentvolume "v" is not a hostPath volume`,
		},
	} {
		f := newFixture(t)
		if test.claim != nil {
			f.claims.Add(test.claim)
		}
		if test.volume != nil {
			f.volumes.Add(&corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "v"},
				Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: *test.volume},
			})
		}
		err := f.prepare(test.of)
		if err == nil || !strings.HasPrefix(err.Error(), `volume "data": `) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
		if path, ok := f.folders.Path("data"); ok {
			t.Errorf("%s: the volume has the folder %s", name, path)
		}
	}
}

// TestMountedClaimKeepsItsFolder checks that a Pod that runs is not disturbed by the deletion of its claim, which the
// claim's finalizer delays until the Pod has ended.
func TestMountedClaimKeepsItsFolder(t *testing.T) {
	f := newFixture(t)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "u1"}}
	volume := Provision(claim, t.TempDir())
	if err := os.Mkdir(volume.Spec.HostPath.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	claim = Bind(claim)
	claim.Status = Bound(volume)
	f.claims.Add(claim)
	f.volumes.Add(volume)
	mounted := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	folder := f.mustPrepare(mounted)
	deleted := claim.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	f.claims.Update(deleted)
	if again := f.mustPrepare(mounted); again != folder || folder != volume.Spec.HostPath.Path {
		t.Errorf("got the folder %s and then %s, want %s", folder, again, volume.Spec.HostPath.Path)
	}
}

func TestMissingFolderIsNotRecreated(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "u1"}}
	volume := Provision(claim, t.TempDir())
	claim = Bind(claim)
	claim.Status = Bound(volume)
	f := newFixture(t)
	f.claims.Add(claim)
	f.volumes.Add(volume)
	mounted := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	if err := f.prepare(mounted); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its folder: %v", err)
	}
	os.Mkdir(volume.Spec.HostPath.Path, 0o700)
	if path := f.mustPrepare(mounted); path != volume.Spec.HostPath.Path {
		t.Errorf("got %q", path)
	}
}
