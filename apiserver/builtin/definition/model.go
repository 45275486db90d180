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

// completed is a model whose objects are completed before a client is shown them.
type completed struct {
	resource.Model
	complete func(external runtime.Object)
}

// LoadExternal implements resource.Model.
func (m completed) LoadExternal(stored []byte) (runtime.Object, error) {
	external, err := m.Model.LoadExternal(stored)
	if err == nil {
		m.complete(external)
	}
	return external, err
}
