package resource

import "context"

// defaultManager is who is recorded in the managed fields of what the server itself writes.
const defaultManager = "kube-apiserver"

type managerKey struct{}

// WithManager sets who is recorded in the managed fields of what the server itself writes through Objects.
func WithManager(ctx context.Context, manager string) context.Context {
	return context.WithValue(ctx, managerKey{}, manager)
}

// Manager is who is to be recorded: whom WithManager has set, else kube-apiserver.
func Manager(ctx context.Context) string {
	if manager, ok := ctx.Value(managerKey{}).(string); ok {
		return manager
	}
	return defaultManager
}
