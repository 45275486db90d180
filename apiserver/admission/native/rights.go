package native

import (
	"context"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin/rbac"
)

// Rights refuses writes of roles and bindings by which somebody would get more than the writer has. What the server
// writes in its own name is allowed, like everything that system:masters write; what it writes in nobody's is not asked
// about.
type EscalationCheck struct {
	Guard rbac.Guard
}

// Plugin is the place in the order of admission. It has no name, being part of storage in kube-apiserver.
func (r EscalationCheck) Plugin() admission.Plugin {
	return admission.Plugin{Operations: []admission.Operation{admission.Create, admission.Update}, Mutator: r, Internal: true}
}

// Admit implements admission.Mutator.
func (r EscalationCheck) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.User == nil || a.Definition.Group != "rbac.authorization.k8s.io" {
		return nil
	}
	return r.Guard.Check(ctx, a.Namespace, a.Object, a.Old)
}
