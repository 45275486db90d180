package definition

import (
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

// throughHub is a model that reads through the hub also where the stored version is the served one: conversion
// fills in the kinds of embedded objects.
type throughHub struct{ resource.Model }

// LoadExternal implements resource.Model.
func (m throughHub) LoadExternal(stored []byte) (runtime.Object, error) {
	hub, err := m.Load(stored)
	if err != nil {
		return nil, err
	}
	return m.External(hub)
}
