#!/bin/bash
# Writes everything that a release consists of to dist/: binaries with their licences, an image (OCI layout) for both
# architectures, SBOMs, manifests, the OLM bundle and catalog, the Helm chart, notes and checksums. The same commit gives
# the same bytes. Needs Go and git; no container engine.
#
#   release/build.sh [binaries|image]   only these parts
#
#   IMAGE          name of the image in manifests, bundle and chart; default: quorate. Example: registry.example/quorate
#   ARCHITECTURES  default: amd64 arm64
#   VERSION        without v; default: that in the file VERSION. Tests of upgrades set it; `quorate version` does not follow
#   TAG            tag of the image; default: the version and that of Kubernetes, such as v0.1.0-k8s1.37.2
#   DIST           absolute path of the directory to replace; default: dist of the repository
#   BINARIES       directory with linux-ARCHITECTURE/quorate to use rather than build; for tests
set -euo pipefail
cd "$(dirname "$0")/.."
IMAGE=${IMAGE:-quorate} ARCHITECTURES=${ARCHITECTURES:-amd64 arm64} BINARIES=${BINARIES:-} DIST=${DIST:-$PWD/dist}
KUBERNETES=$(go list -m -f '{{slice .Version 1}}' k8s.io/kubernetes) VERSION=${VERSION:-$(cat VERSION)}
TAG=${TAG:-v$VERSION-k8s$KUBERNETES} REVISION=$(git rev-parse HEAD) TIME=$(git log -1 --format=%ct)
CREATED=$(date -u -d "@$TIME" +%Y-%m-%dT%H:%M:%SZ)
export CGO_ENABLED=0

archive() { # FILE DIRECTORY NAME...: a gzipped tar archive that depends on the files only
  local file=$1 directory=$2; shift 2
  tar -C "$directory" --sort=name --mtime="@$TIME" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -cf - "$@" | gzip -n > "$file"
}

binaries() {
  local architecture directory
  for architecture in $ARCHITECTURES; do
    directory=$DIST/build/linux-$architecture
    mkdir -p "$directory"
    if [ -n "$BINARIES" ]; then
      cp "$BINARIES/linux-$architecture/quorate" "$directory/"
    else
      echo "building linux/$architecture"
      GOOS=linux GOARCH=$architecture go build -trimpath -ldflags "-s -w" -o "$directory/quorate" .
    fi
    go run ./config/notices -os linux -arch "$architecture" > "$directory/THIRD_PARTY_NOTICES"
    cp LICENSE "$directory/"
    archive "$DIST/quorate-v$VERSION-linux-$architecture.tar.gz" "$directory" quorate LICENSE THIRD_PARTY_NOTICES
  done
}

image() {
  local architecture platforms=()
  for architecture in $ARCHITECTURES; do
    platforms+=("linux/$architecture=$DIST/build/linux-$architecture")
  done
  go run -C tools/image . -output "$DIST" -name "$IMAGE" -tag "$TAG" -version "$VERSION" -kubernetes "$KUBERNETES" \
    -revision "$REVISION" -created "$CREATED" "${platforms[@]}"
  tar -C "$DIST/image" --sort=name --mtime="@$TIME" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw \
    -cf "$DIST/quorate-v$VERSION-image.tar" .
}

manifests() {
  local file
  for file in install install-namespaced extension monitoring; do
    sed "s|quorate:latest|$IMAGE:$TAG|" "manifests/$file.yaml" > "$DIST/$file.yaml"
  done
  go run ./release/bundle -version "$VERSION" -image "$IMAGE:$TAG" -bundle-image "$IMAGE-bundle:v$VERSION" -output "$DIST/build/olm"
  archive "$DIST/quorate-v$VERSION-bundle.tar.gz" "$DIST/build/olm" bundle catalog
  go run ./release/chart -version "$VERSION" -output "$DIST/build/charts/quorate"
  sed -i "s|^  repository: quorate$|  repository: $IMAGE|; s|^  tag: \"\"$|  tag: $TAG|" "$DIST/build/charts/quorate/values.yaml"
  archive "$DIST/quorate-$VERSION.tgz" "$DIST/build/charts" quorate
}

rm -rf "$DIST"
mkdir -p "$DIST"
binaries
[ "${1:-}" != binaries ] || exit 0
image
[ "${1:-}" != image ] || exit 0
manifests
go run ./release/notes -version "$VERSION" > "$DIST/NOTES.md"
(cd "$DIST" && sha256sum ./*.tar.gz ./*.tgz ./*.tar ./*.yaml ./*.json ./*.md | sed 's|\./||' > SHA256SUMS)
rm -rf "$DIST/build"
ls -l "$DIST"
