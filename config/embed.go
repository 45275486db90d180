// Package config embeds manifests into the binary.
package config

import "embed"

// CRDs contains the CustomResourceDefinitions of quorate.dev in crd/.
//
//go:embed crd/quorate.dev_*.yaml
var CRDs embed.FS

// RBAC contains the operator's ServiceAccount and all roles, including the roles for mode Extension, without the
// namespace that kustomize adds.
//
//go:embed rbac/service_account.yaml rbac/*_role.yaml rbac/user_roles.yaml rbac/*/role.yaml rbac/extension/operator.yaml
var RBAC embed.FS
