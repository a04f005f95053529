package channel

import (
	"bytes"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestProve(t *testing.T) {
	client, server := NewKeyPair(), NewKeyPair()
	claim := Claim{Tenant: "acme", Request: turnstone.DigestBytes([]byte("a request"))}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	proof, err := Prove(client, server.Public, claim, at)
	if err != nil || len(proof) != ProofSize {
		t.Fatal(len(proof), err)
	}
	p, err := OpenProof(server, proof, claim)
	if err != nil || p.Client != client.Public || !p.Time.Equal(at) {
		t.Fatalf("%+v, %v", p, err)
	}
	again, err := Prove(client, server.Public, claim, at)
	if err != nil {
		t.Fatal(err)
	}
	if q, err := OpenProof(server, again, claim); err != nil || q.ID == p.ID {
		t.Errorf("two proofs have one ID: %v", err)
	}
	if bytes.Contains(proof, client.Public[:]) {
		t.Error("a proof shows the client's key")
	}
	refused := func(what string, own KeyPair, message []byte, c Claim) {
		t.Helper()
		if _, err := OpenProof(own, message, c); FaultOf(err) != FaultForged {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range proof {
		bad := bytes.Clone(proof)
		bad[i] ^= 0x80
		refused("a changed byte", server, bad, claim)
	}
	refused("another server", NewKeyPair(), proof, claim)
	refused("the client itself", client, proof, claim)
	refused("another tenant", server, proof, Claim{"acm", claim.Request})
	refused("another request", server, proof, Claim{"acme", turnstone.DigestBytes(nil)})
	refused("a part", server, proof[:ProofSize-1], claim)
	refused("more", server, append(bytes.Clone(proof), 0), claim)
	refused("nothing", server, nil, claim)
	if _, err := Prove(client, PublicKey{}, claim, at); FaultOf(err) != FaultWeakKey {
		t.Errorf("a weak key: %v", err)
	}
}

// FuzzOpenProof: no bytes that a client did not make are a proof.
func FuzzOpenProof(f *testing.F) {
	client, server := NewKeyPair(), NewKeyPair()
	claim := Claim{Tenant: "acme", Request: turnstone.DigestBytes([]byte("a request"))}
	proof, err := Prove(client, server.Public, claim, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(proof)
	f.Add(make([]byte, ProofSize))
	f.Add(append(bytes.Clone(server.Public[:]), proof[KeySize:]...))
	f.Fuzz(func(t *testing.T, message []byte) {
		p, err := OpenProof(server, message, claim)
		if err == nil && (!bytes.Equal(message, proof) || p.Client != client.Public) {
			t.Errorf("%x is a proof of %s", message, p.Client)
		}
		if err != nil && FaultOf(err) != FaultForged {
			t.Errorf("%v", err)
		}
	})
}
