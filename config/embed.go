// Package config embeds manifests into the binary.
package config

import "embed"

// CRDs contains the CustomResourceDefinitions of quorate.dev in crd/.
//
//go:embed crd/quorate.dev_*.yaml
var CRDs embed.FS

// ExtensionRole is the ClusterRole of API servers in mode Extension.
//
//go:embed rbac/extension/role.yaml
var ExtensionRole []byte
