// Package v1alpha1 holds the custom resource types of the group quorate.dev, first version.
//
// +kubebuilder:object:generate=true
// +groupName=quorate.dev
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object paths=. crd output:crd:dir=../../../config/crd
//go:generate ../../../config/render.sh
