package resource

import "context"

// defaultManager is the field manager of the server's own writes.
const defaultManager = "kube-apiserver"

type managerKey struct{}

// WithManager sets the field manager for writes through a Client. It is a context value, because some upstream code
// calls the Client through interfaces without options.
func WithManager(ctx context.Context, manager string) context.Context {
	return context.WithValue(ctx, managerKey{}, manager)
}

// Manager returns the field manager set by WithManager; the default is kube-apiserver.
func Manager(ctx context.Context) string {
	if manager, ok := ctx.Value(managerKey{}).(string); ok {
		return manager
	}
	return defaultManager
}
