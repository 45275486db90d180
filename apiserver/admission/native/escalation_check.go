package native

import (
	"context"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin/rbac"
)

// EscalationCheck rejects writes of RBAC roles and bindings that would grant permissions which the user does not have,
// as kube-apiserver's policybased storages do. The server's own writes are allowed: their user is in system:masters, or
// they have no user.
type EscalationCheck struct {
	Guard rbac.Guard
}

// Plugin returns the entry for the order of admission. It has no name because it is part of storage in kube-apiserver.
func (c EscalationCheck) Plugin() admission.Plugin {
	operations := []admission.Operation{admission.Create, admission.Update}
	return admission.Plugin{Operations: operations, Mutator: c, Internal: true}
}

// Admit implements admission.Mutator.
func (c EscalationCheck) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.User == nil || a.Definition.Group != "rbac.authorization.k8s.io" {
		return nil
	}
	return c.Guard.Check(ctx, a.Namespace, a.Object, a.Old)
}
