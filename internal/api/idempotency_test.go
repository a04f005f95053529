package api

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api/apitest"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// TestRequestDigest: equal requests have one digest in every encoding, and a change of any field
// but the key, the nodes to avoid, nonces, grants and proofs changes it.
func TestRequestDigest(t *testing.T) {
	without := []string{"ChannelClient.nonce", "ChannelClient.grant", "ChannelClient.proofs",
		"KeyProof.node", "KeyProof.message"}
	checkDigest(t, RequestDigest, 6, func(f protoreflect.FieldDescriptor) bool {
		return f.Name() == "idempotency_key" || f.Name() == "avoid_nodes" ||
			slices.Contains(without, strings.TrimPrefix(string(f.FullName()), "turnstone.v1."))
	})
}

// TestProofDigest: a change of any field but the proofs changes what a proof is about.
func TestProofDigest(t *testing.T) {
	without := []string{"ChannelClient.proofs", "KeyProof.node", "KeyProof.message"}
	checkDigest(t, ProofDigest, 3, func(f protoreflect.FieldDescriptor) bool {
		return slices.Contains(without, strings.TrimPrefix(string(f.FullName()), "turnstone.v1."))
	})
}

func checkDigest(t *testing.T, digest func(proto.Message) turnstone.Digest, without int,
	leaves func(protoreflect.FieldDescriptor) bool) {
	t.Helper()
	requests, _ := apitest.Messages(t)
	seen := map[turnstone.Digest]string{}
	for _, desc := range requests {
		m := apitest.MessageType(t, desc).New()
		apitest.Fill(m)
		want := digest(m.Interface())
		if other := seen[want]; other != "" {
			t.Errorf("%s and %s have one digest", desc.Name(), other)
		}
		seen[want] = string(desc.Name())
		text, err := protojson.Marshal(m.Interface())
		if err != nil {
			t.Fatal(err)
		}
		again := m.New().Interface()
		if err := protojson.Unmarshal(text, again); err != nil || digest(again) != want {
			t.Errorf("%s through JSON has another digest: %v", desc.Name(), err)
		}
		changed, left := eachChange(m, leaves, func(left bool, path string) {
			if (digest(m.Interface()) == want) != left {
				t.Errorf("%s: a change of %s; left out: %v", desc.Name(), path, left)
			}
		})
		if digest(m.Interface()) != want {
			t.Fatal("the changes were not undone")
		}
		if desc.Name() == "ForkSandboxRequest" && (changed < 5 || left != without) {
			t.Errorf("%d changes, %d without effect", changed, left)
		}
	}
}

// eachChange clears each field of m in turn, calls check, and sets it again.
func eachChange(m protoreflect.Message, leaves func(protoreflect.FieldDescriptor) bool,
	check func(left bool, path string)) (changed, left int) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if !m.Has(f) {
			continue // another field of a oneof
		}
		if f.Message() != nil && !f.IsMap() {
			inner := m.Get(f)
			if f.IsList() {
				inner = inner.List().Get(0)
			}
			c, l := eachChange(inner.Message(), leaves, check)
			changed, left = changed+c, left+l
		}
		without := leaves(f)
		changed++
		if without {
			left++
		}
		whole := proto.Clone(m.Interface())
		m.Clear(f)
		check(without, string(f.FullName()))
		proto.Reset(m.Interface())
		proto.Merge(m.Interface(), whole)
	}
	return changed, left
}

// TestRequestDigestSplits: parts of neighbours do not run together.
func TestRequestDigestSplits(t *testing.T) {
	for _, pair := range [][2]proto.Message{
		{&v1.CreateSandboxRequest{Env: map[string]string{"A": "BC"}},
			&v1.CreateSandboxRequest{Env: map[string]string{"AB": "C"}}},
		{&v1.Network{Allow: []string{"a", "b"}}, &v1.Network{Allow: []string{"ab"}}},
		{&v1.Network{Allow: []string{"a"}}, &v1.Network{Deny: []string{"a"}}},
		{&v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Image{Image: "a"}},
			&v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Template{Template: "a"}}},
		{&v1.CreateSandboxRequest{Machine: &v1.Machine{}}, &v1.CreateSandboxRequest{}},
	} {
		if RequestDigest(pair[0]) == RequestDigest(pair[1]) {
			t.Errorf("%v and %v have one digest", pair[0], pair[1])
		}
	}
	// The value is part of a format: rows with it outlive a restart with another version.
	const want = "sha256:9d3cd70f2df331575ea2b0592cfa10b4ee4505066303ec875eeab8306042ee64"
	got := RequestDigest(&v1.StartTurnRequest{IdempotencyKey: "k", Session: "research",
		Client: apitest.Client()})
	if got != want {
		t.Errorf("the digest is %s", got)
	}
	if IdempotencyKey(&v1.StartTurnRequest{IdempotencyKey: "k"}) != "k" ||
		IdempotencyKey(&v1.GetTurnRequest{}) != "" {
		t.Error("the key is wrong")
	}
}
