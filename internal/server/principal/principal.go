// Package principal carries the principals of tokens between the roles of a server: as a message of
// their services, and as a field of the request that opens a channel.
package principal

import (
	"encoding/base64"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// Message returns a principal for another role, which needs no key of its token.
func Message(p auth.Principal) *v1.Principal {
	m := &v1.Principal{Issuer: p.Issuer, Tenant: p.Tenant, Subject: p.Subject, TokenId: p.TokenID,
		Scopes: texts(p.Scopes), Sessions: texts(p.Sessions), Templates: texts(p.Templates),
		SandboxId: string(p.Sandbox)}
	if !p.Expires.IsZero() {
		m.Expires = timestamppb.New(p.Expires)
	}
	return m
}

// Of returns the principal of a message.
func Of(m *v1.Principal) auth.Principal {
	p := auth.Principal{Issuer: m.GetIssuer(), Tenant: m.GetTenant(), Subject: m.GetSubject(),
		TokenID: m.GetTokenId(), Scopes: typed[auth.Scope](m.GetScopes()),
		Sessions:  typed[auth.Pattern](m.GetSessions()),
		Templates: typed[auth.Pattern](m.GetTemplates()),
		Sandbox:   turnstone.SandboxID(m.GetSandboxId())}
	if m.GetExpires().IsValid() {
		p.Expires = m.GetExpires().AsTime()
	}
	if m.GetExpires() != nil && p.Expires.IsZero() {
		// no time, or the one that a Principal without an end has: it has ended
		p.Expires = time.Unix(0, 0)
	}
	return p
}

// Header is the field of a request to a node that has the principal of the channel's token. Only
// gateways write it: a client's own field does not reach the node (relay.Upgrade).
const Header = "Turnstone-Principal"

// CallerHeader is the field of a control call that has the caller's address, as the gateway sees it:
// an address, or the network of an IPv6 one. A client's own field does not reach the controller.
const CallerHeader = "Turnstone-Caller"

// MaxHeader bounds the field in bytes. A principal has at most 128 patterns of 200 bytes.
const MaxHeader = 48 << 10

// Set sets the field. It fails if the principal is larger than any token makes it.
func Set(h http.Header, p auth.Principal) error {
	b, err := proto.Marshal(Message(p))
	if err == nil && base64.RawURLEncoding.EncodedLen(len(b)) > MaxHeader {
		err = turnstone.Errorf("channel.open", turnstone.KindInvalid, "the token",
			"grants more than %d bytes of patterns", MaxHeader*3/4)
	}
	if err != nil {
		return err
	}
	h.Set(Header, base64.RawURLEncoding.EncodeToString(b))
	return nil
}

// From returns the principal of the field. Without one valid field it is the zero Principal, which
// grants nothing.
func From(h http.Header) auth.Principal {
	all := h.Values(Header)
	if len(all) != 1 || len(all[0]) > MaxHeader {
		return auth.Principal{}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(all[0])
	var m v1.Principal
	if err != nil || proto.Unmarshal(b, &m) != nil {
		return auth.Principal{}
	}
	return Of(&m)
}

func texts[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = string(s)
	}
	return all
}

func typed[T ~string](list []string) []T {
	all := make([]T, len(list))
	for i, s := range list {
		all[i] = T(s)
	}
	return all
}
