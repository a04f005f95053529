package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// IdempotencyKey returns the key of a request; empty if it has none, or its type has no such field.
func IdempotencyKey(m proto.Message) string {
	if k, ok := m.(interface{ GetIdempotencyKey() string }); ok {
		return k.GetIdempotencyKey()
	}
	return ""
}

// RequestDigest returns a digest of a valid request for the comparison of requests with one
// idempotency key. It does not depend on the order of fields and pairs, on the encoding, or on the
// version of a library. It leaves out the key itself, the nodes to avoid, and the nonces and grants of
// clients: a repetition has new ones, as it has other proofs.
func RequestDigest(m proto.Message) turnstone.Digest {
	return digestOf(m, leftOut)
}

// ProofDigest returns a digest of a whole request, which a client's proof of possession is about: of
// all fields, also nonces, grants and the idempotency key, except the proofs. It begins with the
// message's name, which only one procedure has.
func ProofDigest(m proto.Message) turnstone.Digest {
	return digestOf(m, func(f protoreflect.FieldDescriptor) bool {
		return f.Name() == "proofs" && f.ContainingMessage().FullName() == clientName
	})
}

func digestOf(m proto.Message, without func(protoreflect.FieldDescriptor) bool) turnstone.Digest {
	d := digester{sha256.New(), without}
	d.text(string(m.ProtoReflect().Descriptor().FullName()))
	d.message(m.ProtoReflect())
	return turnstone.Digest("sha256:" + hex.EncodeToString(d.h.Sum(nil)))
}

var clientName = (*v1.ChannelClient)(nil).ProtoReflect().Descriptor().FullName()

// Clients returns the clients that a request names, without its lists of other messages: nil for
// those that are not set.
func Clients(m proto.Message) []*v1.ChannelClient {
	switch x := m.(type) {
	case interface{ GetClient() *v1.ChannelClient }:
		return []*v1.ChannelClient{x.GetClient()}
	case interface{ GetClients() []*v1.ChannelClient }:
		return x.GetClients()
	}
	return nil
}

// leftOut are the fields that RequestDigest does not compare.
func leftOut(f protoreflect.FieldDescriptor) bool {
	return f.Name() == "idempotency_key" || f.Name() == "avoid_nodes" ||
		f.ContainingMessage().FullName() == clientName && f.Name() != "client_public_key"
}

// A digester hashes values so that no two different messages of a type give the same bytes: each
// part has a length or a number before it.
type digester struct {
	h       hash.Hash
	without func(protoreflect.FieldDescriptor) bool // fields that are not hashed
}

func (d digester) number(n uint64) {
	_, _ = d.h.Write(binary.BigEndian.AppendUint64(nil, n)) // documented never to fail
}

func (d digester) text(s string) {
	d.number(uint64(len(s)))
	_, _ = d.h.Write([]byte(s))
}

func (d digester) message(m protoreflect.Message) {
	var set []protoreflect.FieldDescriptor
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !d.without(f) {
			set = append(set, f)
		}
		return true
	})
	slices.SortFunc(set, func(a, b protoreflect.FieldDescriptor) int {
		return cmp.Compare(a.Number(), b.Number())
	})
	d.number(uint64(len(set)))
	for _, f := range set {
		d.number(uint64(f.Number()))
		switch v := m.Get(f); {
		case f.IsMap():
			d.pairs(f, v.Map())
		case f.IsList():
			d.number(uint64(v.List().Len()))
			for i := range v.List().Len() {
				d.one(f, v.List().Get(i))
			}
		default:
			d.one(f, v)
		}
	}
}

func (d digester) pairs(f protoreflect.FieldDescriptor, m protoreflect.Map) {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int {
		return cmp.Compare(a.String(), b.String())
	})
	d.number(uint64(len(keys)))
	for _, k := range keys {
		d.text(k.String())
		d.one(f.MapValue(), m.Get(k))
	}
}

func (d digester) one(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		d.message(x)
	case string:
		d.text(x)
	case []byte:
		d.text(string(x))
	case bool:
		if x {
			d.number(1)
		} else {
			d.number(0)
		}
	case protoreflect.EnumNumber:
		d.number(uint64(x))
	case int32:
		d.number(uint64(x))
	case int64:
		d.number(uint64(x))
	case uint32:
		d.number(uint64(x))
	case uint64:
		d.number(x)
	case float32:
		d.number(math.Float64bits(float64(x)))
	case float64:
		d.number(math.Float64bits(x))
	default:
		panic("api: a field of kind " + f.Kind().String())
	}
}
