// Package channel encrypts a byte stream between a client and a sandbox, or a client and a node,
// through relays that neither of them trusts: Noise_IK_25519_ChaChaPoly_SHA256, bound to an
// attestation of the server's key by the attestation's digest. The wire runs inside it.
//
// The package knows no attestation, because the agent in a sandbox has to verify none: package
// attest has those. docs/decisions/0019-channel.md has the formats and the reasons.
package channel

// Magic begins every channel. No connection of the wire in the clear begins with its first byte,
// which would be a WebSocket frame with a reserved bit.
const Magic = "TSC1"

// Sizes of the handshake and of frames, in bytes.
const (
	magic      = Magic
	digestSize = 32
	firstSize  = 96 // Noise message 1: e, encrypted s, the tag of an empty payload
	secondSize = 48 // Noise message 2: e, the tag of an empty payload
	prefixSize = len(magic) + digestSize

	maxNoise = 65535 // Noise, section 3
	tagSize  = 16
	headSize = 10                        // length and number of a frame
	maxData  = maxNoise - tagSize - 1    // data in a frame, beside its kind
	maxFrame = headSize + maxNoise       // a whole frame
	minNoise = tagSize + 1               // a frame of a kind alone
	prologue = "turnstone channel 1\x00" // followed by the digest
)

// rekeyEvery is the number of frames of a direction under one key.
const rekeyEvery = 1 << 16

// The kinds of frames.
const (
	kindData    byte = 0
	kindEnd     byte = 1 // no data follows in this direction
	kindConfirm byte = 2 // the client's first frame: its first message was not replayed
	kindFault   byte = 3 // the name of a manipulation of received frames; the sender's last frame
)

// The reasons of a server that ends a handshake. They are not authenticated.
const (
	answerSecond  byte = 0 // Noise message 2 follows
	answerUnknown byte = 1 // the statement is not known
	answerExpired byte = 2 // the statement has expired
	answerKey     byte = 3 // the statement does not name the client's key
	answerFailed  byte = 4 // the first message is not for this key and statement
)
