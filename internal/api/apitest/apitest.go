// Package apitest has messages of the control API for tests.
package apitest

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// SandboxID is a valid ID.
const SandboxID = "sb_0123456789abcdefgh"

// Client returns a valid client of channels.
func Client() *v1.ChannelClient {
	return &v1.ChannelClient{ClientPublicKey: bytes.Repeat([]byte{9}, 32),
		Nonce: make([]byte, 32)}
}

// MessageType returns the generated type of m.
func MessageType(t testing.TB, m protoreflect.MessageDescriptor) protoreflect.MessageType {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt
}

// Messages returns the types of all requests, and answers those of all answers.
func Messages(t testing.TB) (requests, answers []protoreflect.MessageDescriptor) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("turnstone.v1",
		func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				for j := range f.Services().Get(i).Methods().Len() {
					m := f.Services().Get(i).Methods().Get(j)
					requests, answers = append(requests, m.Input()), append(answers, m.Output())
				}
			}
			return true
		})
	if len(requests) < 50 {
		t.Fatalf("there are %d requests", len(requests))
	}
	return requests, answers
}

// Fill sets each field of m to a valid value.
func Fill(m protoreflect.Message) { fill(m, 0) }

// fill sets the fields of m, so that the seeds have each field at least once.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("A").MapKey(),
				protoreflect.ValueOfString("b"))
		case f.Message() != nil && f.IsList():
			if depth < 4 {
				fill(m.Mutable(f).List().AppendMutable().Message(), depth+1)
			}
		case f.Message() != nil:
			if depth < 4 {
				fill(m.Mutable(f).Message(), depth+1)
			}
		case f.IsList():
			m.Mutable(f).List().Append(sample(f))
		default:
			m.Set(f, sample(f))
		}
	}
}

var samples = map[protoreflect.Name]string{
	"sandbox_id": SandboxID, "sandbox_ids": SandboxID, "ticket_id": "tk_0123456789abcdefgh",
	"ticket_ids": "tk_0123456789abcdefgh", "snapshot_id": "sn_0123456789abcdefgh",
	"session_id": "s_0123456789abcdefgh", "cwd": "/work", "managed_by": "k/a", "scopes": "turns:run",
	"owner": sampleKey, "key": sampleKey,
}

const sampleKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJ"

func sample(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		if s, ok := samples[f.Name()]; ok {
			return protoreflect.ValueOfString(s)
		}
		return protoreflect.ValueOfString("a")
	case protoreflect.BytesKind:
		size := 32
		if f.FullName() == "turnstone.v1.KeyProof.message" {
			size = 104
		}
		return protoreflect.ValueOfBytes(bytes.Repeat([]byte{9}, size))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1 << 30)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(0)
	default:
		return protoreflect.ValueOfInt64(60)
	}
}
