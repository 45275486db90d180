// Package v1alpha1 contains the types of the API group quorate.dev, version v1alpha1. The doc comments of their fields
// are what kubectl explain prints: each gives the default, the unit and an example.
//
// +kubebuilder:object:generate=true
// +groupName=quorate.dev
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object paths=. crd output:crd:dir=../../../config/crd
//go:generate go run ../../../release/monitoring -root ../../..
//go:generate go run ../../../release/reference -root ../../..
//go:generate ../../../config/render.sh
//go:generate go run ../../../release/bundle -root ../../..
//go:generate go run ../../../release/chart -root ../../..
