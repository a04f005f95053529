package channel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/flynn/noise"

	"turnstone.dev/turnstone"
)

// sdkFile is what the tests of the SDKs in all languages read.
const sdkFile = "../../sdk/testdata/noise.json"

// sdkVectors are the vectors of channels. Bytes are in hexadecimal.
type sdkVectors struct {
	// Published are those of cacophony (github.com/haskell-cryptography/cacophony, public domain), of
	// the patterns that a client uses.
	Published []publishedVector `json:"published"`
	Channel   vector            `json:"channel"`
	// Answers are other answers to the first message of Channel's client.
	Answers []answerVector `json:"answers"`
	// Frames are what Channel's server sends after its answer.
	Frames     []framesVector   `json:"frames"`
	Rekey      rekeyVector      `json:"rekey"`
	Possession possessionVector `json:"possession"`
}

type publishedVector struct {
	Protocol      string             `json:"protocol_name"`
	InitPrologue  string             `json:"init_prologue"`
	InitStatic    string             `json:"init_static"`
	InitEphemeral string             `json:"init_ephemeral"`
	ResponderKey  string             `json:"init_remote_static"`
	RespPrologue  string             `json:"resp_prologue"`
	RespStatic    string             `json:"resp_static"`
	RespEphemeral string             `json:"resp_ephemeral,omitempty"`
	HandshakeHash string             `json:"handshake_hash"`
	Messages      []publishedMessage `json:"messages"`
}

type publishedMessage struct {
	Payload    string `json:"payload"`
	Ciphertext string `json:"ciphertext"`
}

// An answerVector has the error of a client that gets an answer.
type answerVector struct {
	Name   string         `json:"name"`
	Answer string         `json:"answer"`
	Kind   turnstone.Kind `json:"kind"`
	Fault  Fault          `json:"fault"` // empty: none
}

// A framesVector has what a client reads, and the error after it. Without a kind, the end follows.
type framesVector struct {
	Name   string         `json:"name"`
	Frames string         `json:"frames"`
	Data   string         `json:"data"`
	Kind   turnstone.Kind `json:"kind"`
	Fault  Fault          `json:"fault"`
}

// A rekeyVector has the key of a direction, and the key that follows it after Every frames.
type rekeyVector struct {
	Key   string `json:"key"`
	Next  string `json:"next"`
	Every int    `json:"every"`
}

// A possessionVector is a proof of possession. Its prologue is Prologue, the digest of Request and
// Tenant; its payload is Time in milliseconds, 8 bytes, the highest first.
type possessionVector struct {
	Prologue        string           `json:"prologue"`
	Tenant          string           `json:"tenant"`
	Request         turnstone.Digest `json:"request"`
	Time            int64            `json:"time"`
	ClientStatic    string           `json:"client_static"`
	ClientEphemeral string           `json:"client_ephemeral"`
	ServerStatic    string           `json:"server_static"`
	Message         string           `json:"message"`
}

// TestSDKVectors compares what this package does with the list that the SDKs test against. -update
// writes the list again, which is a new version of the protocol.
func TestSDKVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/published.json")
	var v sdkVectors
	if err == nil {
		err = json.Unmarshal(b, &v.Published)
	}
	if err == nil {
		b, err = os.ReadFile("testdata/vector.json")
	}
	if err == nil {
		err = json.Unmarshal(b, &v.Channel)
	}
	if err != nil {
		t.Fatal(err)
	}
	v.Answers, v.Frames = answerVectors(t), framesVectors(t)
	v.Rekey, v.Possession = rekeyed(), possession(t)
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(sdkFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(sdkFile); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the vectors are not those of %s: %v\n%s", sdkFile, err, got)
	}
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPublished performs the published handshakes with this package's Diffie-Hellman functions.
func TestPublished(t *testing.T) {
	b, err := os.ReadFile("testdata/published.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []publishedVector
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	patterns := map[string]noise.HandshakePattern{"Noise_IK_25519_ChaChaPoly_SHA256": noise.HandshakeIK,
		"Noise_X_25519_ChaChaPoly_SHA256": noise.HandshakeX}
	for _, v := range all {
		t.Run(v.Protocol, func(t *testing.T) {
			static := func(text string) *private {
				k, err := LoadKeyPair(unhex(t, text))
				if err != nil {
					t.Fatal(err)
				}
				return k.private
			}
			init, _, err := newState(noise.Config{Pattern: patterns[v.Protocol], Initiator: true,
				Prologue: unhex(t, v.InitPrologue), PeerStatic: unhex(t, v.ResponderKey),
				Random: bytes.NewReader(unhex(t, v.InitEphemeral))}, static(v.InitStatic))
			if err != nil {
				t.Fatal(err)
			}
			resp, _, err := newState(noise.Config{Pattern: patterns[v.Protocol],
				Prologue: unhex(t, v.RespPrologue),
				Random:   bytes.NewReader(unhex(t, v.RespEphemeral))}, static(v.RespStatic))
			if err != nil {
				t.Fatal(err)
			}
			speak(t, init, resp, v)
		})
	}
}

// speak exchanges the messages of a published vector. A pattern of one message speaks one way.
func speak(t *testing.T, init, resp *noise.HandshakeState, v publishedVector) {
	from, to := init, resp
	var there, back [2]*noise.CipherState // of the initiator and of the responder
	for n, m := range v.Messages {
		payload, sealed := unhex(t, m.Payload), unhex(t, m.Ciphertext)
		var out, in []byte
		var err, failed error
		if there[0] == nil {
			var a, b, c, d *noise.CipherState
			out, a, b, err = from.WriteMessage(nil, payload)
			in, c, d, failed = to.ReadMessage(nil, sealed)
			if a != nil && n%2 == 0 {
				there, back = [2]*noise.CipherState{a, c}, [2]*noise.CipherState{b, d}
			} else if a != nil {
				there, back = [2]*noise.CipherState{c, a}, [2]*noise.CipherState{d, b}
			}
			from, to = to, from
		} else if n%2 == 0 || v.RespEphemeral == "" {
			out, err = there[0].Encrypt(nil, nil, payload)
			in, failed = there[1].Decrypt(nil, nil, sealed)
		} else {
			out, err = back[1].Encrypt(nil, nil, payload)
			in, failed = back[0].Decrypt(nil, nil, sealed)
		}
		if err != nil || failed != nil || !bytes.Equal(out, sealed) || !bytes.Equal(in, payload) {
			t.Fatalf("message %d: %x, %v; %q, %v", n, out, err, in, failed)
		}
	}
	if hash := hex.EncodeToString(init.ChannelBinding()); hash != v.HandshakeHash {
		t.Errorf("the hash is %s", hash)
	}
}

// answerVectors gives a client answers that are not those of its server.
func answerVectors(t *testing.T) (all []answerVector) {
	hello, answer, _ := record(t)
	flipped := slices.Clone(answer)
	flipped[len(flipped)-1] ^= 1
	weak := slices.Concat([]byte{answerSecond}, make([]byte, KeySize), answer[1+KeySize:])
	for _, one := range []struct {
		name   string
		answer []byte
	}{
		{"the answer is of another key", swapped(t, hello)},
		{"the answer was changed", flipped},
		{"the answer has a point of low order", weak},
		{"the first message comes back", hello},
		{"the first message comes back as the answer", slices.Concat([]byte{answerSecond},
			hello[prefixSize:prefixSize+secondSize])},
		{"the answer begins with another byte", []byte{9}},
		{"the statement is not known", []byte{answerUnknown}},
		{"the statement has expired", []byte{answerExpired}},
		{"the statement does not name the client's key", []byte{answerKey}},
		{"the first message is not for the server", []byte{answerFailed}},
		{"the stream ends before the answer", nil},
		{"the stream ends within the answer", answer[:20]},
	} {
		_, err := Client(t.Context(), &tape{in: bytes.NewReader(one.answer)}, fixedEnds(t).client)
		if err == nil {
			t.Fatalf("%s: there is no error", one.name)
		}
		all = append(all, answerVector{one.name, hex.EncodeToString(one.answer), turnstone.KindOf(err),
			FaultOf(err)})
	}
	return all
}

// swapped returns the answer of a server that has another key than the attested one, and reads the
// client's first message as if it had it.
func swapped(t *testing.T, hello []byte) []byte {
	t.Helper()
	e := fixedEnds(t)
	e.server.random = fixed(9)
	stream := &tape{in: bytes.NewReader(hello)}
	_, _ = Server(t.Context(), stream, e.server)
	answer := bytes.Clone(stream.out.Bytes())
	// its ephemeral key is another one than the tag's
	_, honest, _ := record(t)
	copy(answer[1+KeySize:], honest[1+KeySize:])
	return answer
}

// framesVectors gives a client frames of its server, and what a relay makes of them.
func framesVectors(t *testing.T) (all []framesVector) {
	hello, answer, rest := record(t)
	sending := &tape{in: bytes.NewReader(append(bytes.Clone(hello), rest...))}
	server, err := Server(t.Context(), sending, fixedEnds(t).server)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", ""} {
		if _, err := server.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	f := split(bytes.Clone(sending.out.Bytes()[len(answer):]))
	own := split(rest)
	flip := func(frame []byte, at int) []byte {
		frame = slices.Clone(frame)
		frame[at] ^= 1
		return frame
	}
	last := func(kind byte, data string) []byte { return otherFrame(t, hello, rest, answer, kind, data) }
	for _, one := range []struct {
		name   string
		frames [][]byte
	}{
		{"nothing was done", f},
		{"something follows the end", append(slices.Clone(f), f[0])},
		{"the data was changed", [][]byte{f[0], flip(f[1], headSize), f[2]}},
		{"the tag was changed", [][]byte{flip(f[0], len(f[0])-1)}},
		{"the number was changed", [][]byte{flip(f[0], 9)}},
		{"a frame is too short", [][]byte{{0, 16, 0, 0, 0, 0, 0, 0, 0, 0}}},
		{"a frame came again", [][]byte{f[0], f[0]}},
		{"a frame is missing", [][]byte{f[1], f[2]}},
		{"a frame of this side came back", [][]byte{own[0]}},
		{"the stream ended without the end", [][]byte{f[0], f[1]}},
		{"the stream ended within a frame", [][]byte{f[0], f[1][:12]}},
		{"the other side got something else", [][]byte{last(kindFault, string(FaultAltered))}},
		{"the other side names a fault that none reports", [][]byte{last(kindFault, "other")}},
		{"a frame has an unknown kind", [][]byte{last(77, "x")}},
		{"a frame of data has none", [][]byte{last(kindData, "")}},
		{"the end has data", [][]byte{last(kindEnd, "x")}},
		{"a second confirmation", [][]byte{last(kindConfirm, "")}},
	} {
		sent := bytes.Join(one.frames, nil)
		c, err := Client(t.Context(), &tape{in: bytes.NewReader(append(bytes.Clone(answer), sent...))},
			fixedEnds(t).client)
		if err != nil {
			t.Fatal(one.name, err)
		}
		data, err := io.ReadAll(c)
		v := framesVector{Name: one.name, Frames: hex.EncodeToString(sent), Data: hex.EncodeToString(data)}
		if err != nil {
			v.Kind, v.Fault = turnstone.KindOf(err), FaultOf(err)
		}
		all = append(all, v)
	}
	return all
}

// otherFrame returns the first frame of a server that sends what none does.
func otherFrame(t *testing.T, hello, rest, answer []byte, kind byte, data string) []byte {
	t.Helper()
	stream := &tape{in: bytes.NewReader(append(bytes.Clone(hello), rest...))}
	server, err := Server(t.Context(), stream, fixedEnds(t).server)
	if err == nil {
		err = server.put(kind, []byte(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(stream.out.Bytes()[len(answer):])
}

func rekeyed() rekeyVector {
	var k [32]byte
	_, _ = fixed(7).Read(k[:])
	s := noise.UnsafeNewCipherState(suite, k, 0)
	s.Rekey()
	next := s.UnsafeKey()
	return rekeyVector{hex.EncodeToString(k[:]), hex.EncodeToString(next[:]), rekeyEvery}
}

// possession returns a proof that Prove could have made.
func possession(t *testing.T) possessionVector {
	const at = 1_800_000_000_123
	client, server := fixedKey(t, 1), fixedKey(t, 2)
	claim := Claim{Tenant: "acme", Request: turnstone.DigestBytes([]byte("request"))}
	prologue, err := claim.prologue()
	if err != nil {
		t.Fatal(err)
	}
	state, _, err := newState(noise.Config{Pattern: noise.HandshakeX, Initiator: true,
		Prologue: prologue, PeerStatic: server.Public[:], Random: fixed(3)}, client.private)
	if err != nil {
		t.Fatal(err)
	}
	message, _, _, err := state.WriteMessage(nil, binary.BigEndian.AppendUint64(nil, at))
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenProof(server, message, claim)
	if err != nil || p.Client != client.Public || !p.Time.Equal(time.UnixMilli(at)) {
		t.Fatal(p, err)
	}
	if _, err := OpenProof(server, message, Claim{Request: claim.Request}); FaultOf(err) != FaultForged ||
		!errors.Is(err, errProof) {
		t.Fatal(err)
	}
	return possessionVector{hex.EncodeToString([]byte(proofPrologue)), claim.Tenant, claim.Request, at,
		hex.EncodeToString(client.Private()), hex.EncodeToString(fixedKey(t, 3).Private()),
		hex.EncodeToString(server.Private()), hex.EncodeToString(message)}
}
