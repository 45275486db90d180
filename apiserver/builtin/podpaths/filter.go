package podpaths

import (
	"slices"

	core "k8s.io/kubernetes/pkg/apis/core"
)

// filter visits the paths of a volume. If kept is nil, it collects the paths. Otherwise it removes the paths for which
// kept is false.
type filter struct {
	kept  []bool
	paths []string // paths visited so far
}

// keeps adds a path to the visited paths, and reports whether the path is kept.
func (f *filter) keeps(path string) bool {
	f.paths = append(f.paths, path)
	return f.kept == nil || f.kept[len(f.paths)-1]
}

// volume visits the paths of a volume.
func (f *filter) volume(volume *core.Volume) {
	if volume.ConfigMap != nil {
		f.items(&volume.ConfigMap.Items)
	}
	if volume.Secret != nil {
		f.items(&volume.Secret.Items)
	}
	if volume.DownwardAPI != nil {
		f.files(&volume.DownwardAPI.Items)
	}
	if volume.Projected == nil {
		return
	}
	var sources []core.VolumeProjection
	for i := range volume.Projected.Sources {
		if source := &volume.Projected.Sources[i]; f.source(source) {
			sources = append(sources, *source)
		}
	}
	if f.kept != nil {
		volume.Projected.Sources = sources
	}
}

// source visits the paths of a projected source. It reports whether to keep the source, because it is empty or has
// paths that are kept.
func (f *filter) source(source *core.VolumeProjection) bool {
	switch {
	case source.ConfigMap != nil:
		return f.items(&source.ConfigMap.Items)
	case source.Secret != nil:
		return f.items(&source.Secret.Items)
	case source.DownwardAPI != nil:
		return f.files(&source.DownwardAPI.Items)
	case source.ServiceAccountToken != nil:
		return f.keeps(source.ServiceAccountToken.Path)
	case source.ClusterTrustBundle != nil:
		return f.keeps(source.ClusterTrustBundle.Path)
	case source.PodCertificate != nil:
		chain, key := f.keeps(source.PodCertificate.CertificateChainPath), f.keeps(source.PodCertificate.KeyPath)
		return f.keeps(source.PodCertificate.CredentialBundlePath) || chain || key
	}
	return true
}

// items visits the paths of items, and removes the items that are not kept. It reports whether any item is kept.
func (f *filter) items(items *[]core.KeyToPath) bool {
	return visit(f, items, func(item core.KeyToPath) string { return item.Path })
}

// files visits the paths of files, and removes the files that are not kept. It reports whether any file is kept.
func (f *filter) files(files *[]core.DownwardAPIVolumeFile) bool {
	return visit(f, files, func(file core.DownwardAPIVolumeFile) string { return file.Path })
}

// visit visits the paths of a list. If the filter only collects paths, it does not write to the list, which other
// goroutines may read.
func visit[E any](f *filter, list *[]E, path func(E) string) bool {
	if f.kept == nil {
		for _, element := range *list {
			f.keeps(path(element))
		}
	} else {
		*list = slices.DeleteFunc(*list, func(element E) bool { return !f.keeps(path(element)) })
	}
	return len(*list) > 0
}
