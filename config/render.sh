#!/bin/sh
# Renders manifests/ from config/ with kubectl of the module graph, or with $KUBECTL.
set -e
cd "$(dirname "$0")/.."
mkdir -p manifests
render() { # SOURCE FILE
  ${KUBECTL:-go tool kubectl} kustomize "$1" > "$2.new"
  mv "$2.new" "$2"
}
render config/default manifests/install.yaml
render config/namespaced manifests/install-namespaced.yaml
render config/rbac/extension manifests/extension.yaml
render config/monitoring manifests/monitoring.yaml
