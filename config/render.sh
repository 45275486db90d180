#!/bin/sh
# Renders manifests/install.yaml from config/default, with kubectl from the module graph. KUBECTL names another one.
set -e
cd "$(dirname "$0")/.."
mkdir -p manifests
${KUBECTL:-go tool kubectl} kustomize config/default > manifests/install.yaml.new
mv manifests/install.yaml.new manifests/install.yaml
