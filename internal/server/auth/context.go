package auth

import "context"

type principalKey struct{}

// NewContext returns a context for calls of an authenticated caller.
func NewContext(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// FromContext returns the caller of NewContext. The connection that a context belongs to has
// authenticated it: a header cannot set it.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}
