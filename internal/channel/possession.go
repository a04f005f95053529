package channel

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"

	"github.com/flynn/noise"

	"turnstone.dev/turnstone"
)

// proofPrologue begins the prologue of every proof of possession. No other use of the keys has it.
const proofPrologue = "turnstone proof of possession 1\x00"

// proofPayload is the size of what a proof carries: a time.
const proofPayload = 8

// ProofSize is the size of a proof of possession in bytes: an ephemeral key, the client's key and
// the time, the last two encrypted.
const ProofSize = KeySize + KeySize + 16 + proofPayload + 16

// A Claim is what a proof of possession is about: one call.
type Claim struct {
	Tenant  string           // in whose name the call is made
	Request turnstone.Digest // of the whole request, with its type: see api.ProofDigest
}

// prologue returns bytes that no other claim gives.
func (c Claim) prologue() ([]byte, error) {
	digest, err := hex.DecodeString(c.Request.Hex())
	if err != nil || len(digest) != digestSize {
		return nil, turnstone.Errorf("channel.prove", turnstone.KindInvalid, "the request",
			"has no digest")
	}
	b := append([]byte(proofPrologue), digest...)
	return append(b, c.Tenant...), nil
}

// A Possession is what a valid proof shows.
type Possession struct {
	Client PublicKey // whose private key made it
	Time   time.Time // of the client's clock, in whole milliseconds
	ID     [sha256.Size]byte
}

// Prove returns a proof, for the server with a known key, that the caller has the private key of own
// and makes a claim now. It is one message of Noise_X (Noise Protocol Framework, revision 34, 7.4):
// only the server can verify it, and it is valid for no other server and no other claim. The error
// has the fault FaultWeakKey if the server's key is a point of low order.
func Prove(own KeyPair, server PublicKey, c Claim, now time.Time) ([]byte, error) {
	prologue, err := c.prologue()
	if err != nil {
		return nil, err
	}
	if own.private == nil {
		return nil, turnstone.Errorf("channel.prove", turnstone.KindInvalid, subject,
			"the client has no key")
	}
	state, erase, err := newState(noise.Config{Pattern: noise.HandshakeX, Initiator: true,
		Prologue: prologue, PeerStatic: server[:]}, own.private)
	if err != nil {
		return nil, turnstone.NewError("channel.prove", turnstone.KindInternal, subject, err)
	}
	defer erase()
	payload := binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli()))
	message, _, _, err := state.WriteMessage(nil, payload)
	if err != nil {
		return nil, Fail("channel.prove", FaultWeakKey, subject, "the server's key: %w", err)
	}
	return message, nil
}

// OpenProof verifies an untrusted proof for a claim. Whether its time is now, and whether it was
// used before, is the caller's to decide: each proof has an ID of its own. The error has the fault
// FaultForged.
func OpenProof(own KeyPair, message []byte, c Claim) (*Possession, error) {
	fail := func(format string, args ...any) (*Possession, error) {
		return nil, Fail("channel.prove", FaultForged, "the proof", format, args...)
	}
	if len(message) != ProofSize {
		return fail("has %d bytes, not %d", len(message), ProofSize)
	}
	prologue, err := c.prologue()
	if err != nil {
		return nil, err
	}
	state, _, err := newState(noise.Config{Pattern: noise.HandshakeX, Prologue: prologue},
		own.private)
	if err != nil {
		return nil, turnstone.NewError("channel.prove", turnstone.KindInternal, "the proof", err)
	}
	payload, _, _, err := state.ReadMessage(nil, message)
	if err != nil {
		return fail("%w", errProof)
	}
	p := &Possession{Client: PublicKey(state.PeerStatic()), ID: sha256.Sum256(message)}
	if len(payload) != proofPayload || bytes.Equal(p.Client[:], make([]byte, KeySize)) {
		return fail("%w", errProof)
	}
	ms := binary.BigEndian.Uint64(payload)
	if ms > maxProofTime {
		return fail("has a time that no clock shows")
	}
	p.Time = time.UnixMilli(int64(ms)).UTC()
	return p, nil
}

// maxProofTime is the end of the year 9999, in milliseconds.
const maxProofTime = 253402300799_999

var errProof = errors.New("is not for this node, this call and this tenant")
