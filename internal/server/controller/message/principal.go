package message

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// Principal returns a principal for a node, which needs no key of its token.
func Principal(p auth.Principal) *v1.Principal {
	return &v1.Principal{Issuer: p.Issuer, Tenant: p.Tenant, Subject: p.Subject,
		TokenId: p.TokenID, Expires: Timestamp(p.Expires), Scopes: Texts(p.Scopes),
		Sessions: Texts(p.Sessions), Templates: Texts(p.Templates), SandboxId: string(p.Sandbox)}
}

// OfPrincipal returns the principal that a gateway authenticated.
func OfPrincipal(p *v1.Principal) auth.Principal {
	return auth.Principal{Issuer: p.GetIssuer(), Tenant: p.GetTenant(), Subject: p.GetSubject(),
		TokenID: p.GetTokenId(), Expires: Instant(p.GetExpires()),
		Scopes:   fromTexts[auth.Scope](p.GetScopes()),
		Sessions: fromTexts[auth.Pattern](p.GetSessions()), Templates: fromTexts[auth.Pattern](
			p.GetTemplates()), Sandbox: turnstone.SandboxID(p.GetSandboxId())}
}

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

func fromTexts[T ~string](list []string) []T {
	all := make([]T, len(list))
	for i, s := range list {
		all[i] = T(s)
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
