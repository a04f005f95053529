package message

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/principal"
)

// Principal returns a principal for a node, which needs no key of its token.
func Principal(p auth.Principal) *v1.Principal { return principal.Message(p) }

// OfPrincipal returns the principal that a gateway authenticated.
func OfPrincipal(p *v1.Principal) auth.Principal { return principal.Of(p) }

// Janitor is the principal of what the controller does at a node for a tenant on its own account.
func Janitor(tenant string) *v1.Principal {
	p := auth.Operator("controller")
	p.Tenant = tenant
	return Principal(p)
}

// Texts returns texts of any type as strings.
func Texts[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = string(s)
	}
	return all
}

// Timestamp and Instant convert times; the zero time is an unset Timestamp.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Instant is the reverse of Timestamp.
func Instant(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}
