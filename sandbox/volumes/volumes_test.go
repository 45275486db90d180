package volumes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/source"
)

func objects() source.Objects {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team", Name: name} }
	secrets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	secrets.Add(&corev1.Secret{
		ObjectMeta: meta("tls"), Data: map[string][]byte{"tls.crt": []byte("C"), "tls.key": []byte("K")},
	})
	configMaps := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	configMaps.Add(&corev1.ConfigMap{
		ObjectMeta: meta("config"), Data: map[string]string{"a": "A"}, BinaryData: map[string][]byte{"b": {0}},
	})
	return source.Objects{
		Secrets: corelisters.NewSecretLister(secrets), ConfigMaps: corelisters.NewConfigMapLister(configMaps),
	}
}

type fixedToken string

func (f fixedToken) Token(context.Context, *corev1.Pod, *corev1.ServiceAccountTokenProjection) (string, error) {
	return string(f), nil
}

func reference(name string) corev1.LocalObjectReference {
	return corev1.LocalObjectReference{Name: name}
}

func TestRender(t *testing.T) {
	key := []corev1.KeyToPath{{Key: "tls.key", Path: "private/key", Mode: ptr.To[int32](0o400)}}
	tests := map[string]struct {
		volume corev1.VolumeSource
		want   string // path=data:mode, ...; or the error
	}{
		"secret": {
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}, "tls.crt=C:644 tls.key=K:644",
		},
		"items": {
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls", Items: key}}, "private/key=K:400",
		},
		"missing": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}}, "not found"},
		"missing optional": {
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: ptr.To(true)}}, "",
		},
		"missing key": {
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: reference("config"), Items: key}},
			"has no key",
		},
		"configmap": {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: reference("config"), DefaultMode: ptr.To[int32](0o600),
		}}, "a=A:600 b=\x00:600"},
		"downward": {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}, "labels=x=\"1\"\ny=\"2\":644"},
		"downward with a limit": {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			DefaultMode: ptr.To[int32](0o444), Items: []corev1.DownwardAPIVolumeFile{
				{Path: "cpu", Mode: ptr.To[int32](0o400), ResourceFieldRef: &corev1.ResourceFieldSelector{
					ContainerName: "server", Resource: "limits.cpu", Divisor: resource.MustParse("1m"),
				}},
				{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
			},
		}}, "cpu=500:400 name=team:444"},
		"downward of another container": {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{
				ContainerName: "other", Resource: "limits.cpu",
			}}},
		}}, `no container "other"`},
		"missing key of an optional object": {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: reference("config"), Optional: ptr.To(true),
			Items: []corev1.KeyToPath{{Key: "none", Path: "none"}, {Key: "a", Path: "sub/a"}},
		}}, "sub/a=A:644"},
		"missing in a projection": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: reference("config")}},
				{Secret: &corev1.SecretProjection{LocalObjectReference: reference("none")}},
			},
		}}, `secret "none" not found`},
		"projected with a mode": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: ptr.To[int32](0o440), Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: reference("none"), Optional: ptr.To(true)}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
					{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
				}}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			},
		}}, "namespace=team:440 token=T:440"},
		"unsupported projection": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}},
		}}, "does not support this kind of projection"},
		"projected": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: reference("tls"), Items: key}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: reference("config")}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		}}}, "a=A:644 b=\x00:644 private/key=K:400 token=T:644"},
		"unsupported": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, "not a Secret"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Labels: map[string]string{"y": "2", "x": "1"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "server", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			},
		}}},
	}
	for name, test := range tests {
		content, err := Render(t.Context(), pod, test.volume, objects(), fixedToken("T"))
		if err != nil {
			if test.want == "" || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, describe(content)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func describe(content Content) string {
	var parts []string
	for _, path := range content.Paths() {
		mode := content[path].Mode
		parts = append(parts, path+"="+string(content[path].Data)+":"+string([]byte{
			byte('0' + mode>>6), byte('0' + mode>>3&7), byte('0' + mode&7),
		}))
	}
	return strings.Join(parts, " ")
}

func TestWriteIsAtomic(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "volume")
	first := Content{"a": {Data: []byte("1"), Mode: 0o644}, "sub/b": {Data: []byte("2"), Mode: 0o400}}
	if err := Write(folder, first); err != nil {
		t.Fatal(err)
	}
	expect(t, folder, map[string]string{"a": "1", "sub/b": "2"})
	before, _ := os.Readlink(filepath.Join(folder, "..data"))
	if err := Write(folder, Content{"a": {Data: []byte("3"), Mode: 0o644}, "c": {Mode: 0o644}}); err != nil {
		t.Fatal(err)
	}
	expect(t, folder, map[string]string{"a": "3", "c": ""})
	if _, err := os.Stat(filepath.Join(folder, before)); !os.IsNotExist(err) {
		t.Errorf("the old content still exists: %v", err)
	}
	if err := Write(folder, Content{}); err != nil {
		t.Fatal(err)
	}
	expect(t, folder, map[string]string{})
}

// expect checks the files that a program finds in the volume.
func expect(t *testing.T, folder string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		root := filepath.Join(folder, entry.Name())
		resolved, err := filepath.EvalSymlinks(root)
		if err != nil {
			t.Fatal(err)
		}
		filepath.Walk(resolved, func(path string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() {
				content, _ := os.ReadFile(path)
				got[entry.Name()+strings.TrimPrefix(path, resolved)] = string(content)
			}
			return err
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestFailedWriteLeavesNothing writes contents that the file system rejects, as the agent does again and again while
// the cause remains. The folder keeps its former content, and no partial copies.
func TestFailedWriteLeavesNothing(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "volume")
	if err := Write(folder, Content{"a": {Data: []byte("1"), Mode: 0o644}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := Write(folder, Content{"a": {Data: []byte("2"), Mode: 0o644}, "a/b": {Data: []byte("3"), Mode: 0o644}})
		if err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("got the error %v for a path below a file", err)
		}
	}
	expect(t, folder, map[string]string{"a": "1"})
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 3 { // the content, ..data and a
		t.Errorf("the folder has %v, error %v", entries, err)
	}
}

func TestWriteStaysInside(t *testing.T) {
	for _, path := range []string{"../x", "/x", "a/../../x", "..data", "..x/y", ""} {
		if err := Write(t.TempDir(), Content{path: {Mode: 0o644}}); err == nil {
			t.Errorf("%q was written", path)
		}
	}
}
