package control_test

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node"
)

// keys are the key pairs of the persons of all tests, by their public keys and their principals.
var keys sync.Map

// nodeKey returns the key to which clients prove theirs.
func (s *scene) nodeKey(t testing.TB) channel.PublicKey {
	t.Helper()
	signed, err := s.node.Introduce(context.Background(), node.Client{
		Key: channel.NewKeyPair().Public, Nonce: attest.Nonce{1}, Tenant: "t"})
	if err != nil {
		t.Fatal(err)
	}
	return signed.ServerKey
}

// proveTo proves that a client of the request m has its key, now, to a node with this key.
func proveTo(t testing.TB, pair channel.KeyPair, name string, to channel.PublicKey, tenant string,
	m proto.Message, c *v1.ChannelClient, at time.Time) {
	t.Helper()
	message, err := channel.Prove(pair, to, channel.Claim{Tenant: tenant,
		Request: api.ProofDigest(m)}, at)
	if err != nil {
		t.Fatal(err)
	}
	c.Proofs = []*v1.KeyProof{{Node: name, Message: message}}
}

// prover is an honest client of the scene's node in front of an honest controller: it adds the
// principal's client to calls that may have one, and proofs for all clients.
func (s *scene) prover(t *testing.T) connect.UnaryInterceptorFunc {
	key := s.nodeKey(t)
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			x, ok := r.Any().(interface{ GetPrincipal() *v1.Principal })
			if !ok || x.GetPrincipal() == nil {
				return next(ctx, r)
			}
			m := x.(proto.Message).ProtoReflect()
			q := m.Get(m.Descriptor().Fields().ByName("request")).Message()
			field := q.Descriptor().Fields().ByName("client")
			_, creates := q.Interface().(*v1.CreateSandboxRequest)
			if own, ok := keys.Load(x.GetPrincipal()); ok && field != nil && !q.Has(field) && !creates {
				nonce := make([]byte, 32)
				_, _ = rand.Read(nonce)
				public := own.(channel.KeyPair).Public
				q.Set(field, protoreflect.ValueOfMessage((&v1.ChannelClient{
					ClientPublicKey: public[:], Nonce: nonce}).ProtoReflect()))
			}
			for _, c := range api.Clients(q.Interface()) {
				if len(c.GetClientPublicKey()) != channel.KeySize || len(c.Proofs) > 0 {
					continue
				}
				if pair, ok := keys.Load(channel.PublicKey(c.ClientPublicKey)); ok {
					proveTo(t, pair.(channel.KeyPair), "n1", key, x.GetPrincipal().Tenant,
						q.Interface(), c, time.Now())
				}
			}
			a, err := next(ctx, r)
			for _, c := range api.Clients(q.Interface()) { // tests send a request twice
				if c != nil {
					c.Proofs = nil
				}
			}
			return a, err
		}
	}
}
