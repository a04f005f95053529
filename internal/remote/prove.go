package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// A NodeKey is the key of a node's channels, to which a client proves its own. It is as old as the
// node's process.
type NodeKey struct {
	Node   string            `json:"node"`
	Key    channel.PublicKey `json:"key"`
	Tenant string            `json:"tenant"` // in whose name the client works there
}

// A NodeBook remembers the keys of a server's nodes for later processes. With a wrong key a call
// takes longer, and nothing else.
type NodeBook interface {
	Nodes() []NodeKey
	Remember(all []NodeKey)
}

// Bounds of proofs.
const (
	maxNodes = 6 // that a client proves its key to in one call
	maxMeets = 4 // introductions in one call
)

// prove adds to a request what shows each known node that this client has its key. It names the
// client in requests that may have one. It does nothing on the operator's socket, whose user needs no
// proof, before a node has asked for one. It returns the keys of the nodes that the request has proofs for.
func (s *Server) prove(m proto.Message) ([]NodeKey, error) {
	if d, ok := m.(interface{ GetClient() *v1.ChannelClient }); ok && d.GetClient() == nil {
		c, _ := s.asker()
		f := m.ProtoReflect().Descriptor().Fields().ByName("client")
		m.ProtoReflect().Set(f, protoreflect.ValueOfMessage(c.ProtoReflect()))
	}
	clients := api.Clients(m)
	if len(clients) == 0 {
		return nil, nil
	}
	known := s.nodes()
	digest, now := api.ProofDigest(m), time.Now()
	for _, c := range clients {
		c.Proofs = nil
		for _, n := range known {
			message, err := channel.Prove(s.o.Key, n.Key, channel.Claim{Tenant: n.Tenant,
				Request: digest}, now)
			if err != nil {
				return nil, err
			}
			c.Proofs = append(c.Proofs, &v1.KeyProof{Node: n.Node, Message: message})
		}
	}
	return known, nil
}

// nodes returns the nodes that the client knows, the newest first.
func (s *Server) nodes() []NodeKey {
	s.known.Lock()
	defer s.known.Unlock()
	if !s.asked {
		s.asked = true
		if s.o.Book != nil {
			all := s.o.Book.Nodes()
			s.all = slices.Clone(all[:min(len(all), maxNodes)])
		}
	}
	return slices.Clone(s.all)
}

// remember notes the key of a node whose statement was verified.
func (s *Server) remember(k NodeKey) {
	if k.Node == "" || k.Tenant == "" || slices.Contains(s.nodes(), k) {
		return
	}
	s.known.Lock()
	s.all = slices.DeleteFunc(s.all, func(o NodeKey) bool { return o.Node == k.Node })
	s.all = slices.Insert(s.all, 0, k)
	s.all = s.all[:min(len(s.all), maxNodes)]
	all := slices.Clone(s.all)
	s.known.Unlock()
	if s.o.Book != nil {
		s.o.Book.Remember(all)
	}
}

// meet learns the key of a node that refused a call because it has no proof for it. It reports
// whether the same call may succeed with another proof: it had none for this key. Another call may
// have learnt the key meanwhile. The error says that the introduction is none
// of a node that this client trusts.
func (s *Server) meet(ctx context.Context, m proto.Message, proved []NodeKey, refused error) (bool, error) {
	var status *api.Status
	if !api.IsUnproven(refused) || !errors.As(refused, &status) {
		return false, nil
	}
	signed, err := attest.Open(ctx, status.Introduction)
	if err != nil {
		return false, err
	}
	pins, err := s.o.Pins(ctx, signed.Node, status.Certificate)
	if err != nil {
		return false, err
	}
	expected := attest.Expected{Pins: pins, About: "node:" + signed.Node, Client: s.o.Key.Public}
	err = channel.Fail("channel.verify", channel.FaultReplayed, "the attestation of "+signed.About(),
		"is the answer to a call that asked for none")
	for _, c := range api.Clients(m) { // a fork has several, each with a nonce of its own
		if c.GetNonce() == nil {
			continue
		}
		expected.Nonce = attest.Nonce(c.Nonce)
		if err = signed.Check(expected, time.Now()); err == nil {
			break
		}
	}
	if err == nil {
		err = s.checkTenant(signed.Tenant)
	}
	if err != nil {
		return false, s.distrusted(err)
	}
	k := NodeKey{signed.Node, signed.ServerKey, signed.Tenant}
	s.remember(k)
	return k.Node != "" && k.Tenant != "" && !slices.Contains(proved, k), nil
}

// checkTenant reports a server that works for the caller in the name of another tenant than its
// token's. Some tokens do not say their tenant to their bearers; the node's word counts then.
func (s *Server) checkTenant(tenant string) error {
	if s.o.Token == nil {
		return nil
	}
	token, err := s.o.Token()
	if err != nil {
		return err
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	var claims struct {
		Tenant string `json:"tenant"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Tenant == "" ||
		claims.Tenant == tenant {
		return nil
	}
	return channel.Fail("host.call", channel.FaultSpliced, "the node's statement",
		"is for the tenant %.64q, and the token for %.64q", tenant, claims.Tenant)
}

// avoid names in a request for something new the nodes to avoid, unless it names some.
func (s *Server) avoid(ctx context.Context, m proto.Message) {
	if s.o.Avoid == nil || m == nil {
		return
	}
	f := m.ProtoReflect().Descriptor().Fields().ByName("avoid_nodes")
	if f == nil || m.ProtoReflect().Has(f) {
		return
	}
	list := m.ProtoReflect().Mutable(f).List()
	for _, name := range s.o.Avoid(ctx) {
		list.Append(protoreflect.ValueOfString(name))
	}
}
