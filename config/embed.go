// Package config holds the manifests that a binary carries with it.
package config

import "embed"

// CRDs are the CustomResourceDefinitions of quorate.dev, below crd/.
//
//go:embed crd/quorate.dev_*.yaml
var CRDs embed.FS
