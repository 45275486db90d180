package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// write writes the SBOMs and the OCI layout, and returns the digest of the index.
func (r *release) write(platforms []platform) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		image, err := r.image(p)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s/%s: %w", p.os, p.architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.architecture}},
		})
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	directory := filepath.Join(r.output, "image")
	if err := os.RemoveAll(directory); err != nil {
		return v1.Hash{}, err
	}
	written, err := layout.Write(directory, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	reference, err := canonical(r.name + ":" + r.tag)
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          reference,
		"org.opencontainers.image.ref.name": r.tag,
	}))
}

// canonical returns the name of an image with its registry. containerd looks up images by this name: a pod with
// quorate:v1 uses docker.io/library/quorate:v1.
func canonical(image string) (string, error) {
	tag, err := name.NewTag(image)
	if err != nil {
		return "", fmt.Errorf("-name: %w", err)
	}
	return strings.Replace(tag.Name(), name.DefaultRegistry+"/", "docker.io/", 1), nil
}

// image returns the image of a platform.
func (r *release) image(p platform) (v1.Image, error) {
	bom, err := r.bom(p)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(
		filepath.Join(r.output, fmt.Sprintf("quorate-%s-%s.cdx.json", p.os, p.architecture)), bom, 0o644,
	); err != nil {
		return nil, err
	}
	content, err := r.content(p, bom)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	},
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err :=
		mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
			mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "tools/image"}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = p.os, p.architecture, v1.Time{Time: r.created}
	file.Config = v1.Config{
		Entrypoint: []string{"/quorate"}, User: "65532:65532", Env: []string{"PATH=/"}, Labels: r.labels(),
	}
	return mutate.ConfigFile(image, file)
}

// kubernetesLabel is the label of an image with the version of Kubernetes that its API server implements.
const kubernetesLabel = "dev.quorate.kubernetes.version"

func (r *release) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":       "Quorate",
		prefix + "description": "Highly available Kubernetes API servers as a declared resource",
		prefix + "version":     r.version,
		prefix + "revision":    r.revision,
		prefix + "created":     r.created.UTC().Format("2006-01-02T15:04:05Z"),
		prefix + "licenses":    "Apache-2.0",
		prefix + "url":         "https://quorate.dev",
		prefix + "source":      "https://quorate.dev",
		kubernetesLabel:        r.kubernetes,
	}
}

// content returns the only layer, a tar archive.
func (r *release) content(p platform, bom []byte) ([]byte, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	add := func(name string, mode int64, data []byte) error {
		header := &tar.Header{
			Name: name, Mode: mode, Size: int64(len(data)), ModTime: r.created, Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		if name[len(name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		_, err := writer.Write(data)
		return err
	}
	files := map[string][]byte{}
	for _, name := range []string{"quorate", "LICENSE", "THIRD_PARTY_NOTICES"} {
		data, err := os.ReadFile(filepath.Join(p.directory, name))
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	for _, entry := range []struct {
		name string
		mode int64
		data []byte
	}{
		{"etc/", 0o755, nil},
		{"etc/passwd", 0o644, []byte("nonroot:x:65532:65532::/:\n")},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()},
		{"licenses/", 0o755, nil},
		{"licenses/LICENSE", 0o644, files["LICENSE"]},
		{"licenses/THIRD_PARTY_NOTICES", 0o644, files["THIRD_PARTY_NOTICES"]},
		{"licenses/quorate.cdx.json", 0o644, bom},
		{"quorate", 0o755, files["quorate"]},
		{"tmp/", 0o1777, nil},
	} {
		if err := add(entry.name, entry.mode, entry.data); err != nil {
			return nil, err
		}
	}
	return archive.Bytes(), writer.Close()
}

// authorities returns Mozilla's certificate authorities, except for those that are trusted only for older
// certificates, because a PEM file cannot express that.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer returns no errors
	}
	return text.Bytes()
}
