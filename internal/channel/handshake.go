package channel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/flynn/noise"

	"turnstone.dev/turnstone"
)

// OpHandshake is the operation of errors of a handshake.
const OpHandshake turnstone.Op = "channel.handshake"

// handshakeTime bounds a handshake if the context has no earlier deadline.
const handshakeTime = 10 * time.Second

// readBuffer is the memory for reading that an idle Conn holds, in bytes.
const readBuffer = 4 << 10

// A ClientConfig has what a client knows before it connects.
type ClientConfig struct {
	Key       KeyPair          // of the client
	Server    PublicKey        // from the verified statement
	Statement turnstone.Digest // of the statement

	random io.Reader // nil: the system's
}

// A ServerConfig has what a server admits.
type ServerConfig struct {
	Key      KeyPair // of the server; may be zero if the registry knows no statement
	Registry Registry

	random io.Reader // nil: the system's
}

// Client performs the handshake on a stream, which the Conn then owns. The stream is closed if the
// handshake fails or ctx ends before. Faults say what a relay did.
func Client(ctx context.Context, stream io.ReadWriteCloser, c ClientConfig) (*Conn, error) {
	return within(ctx, stream, func() (*Conn, error) { return c.connect(stream) })
}

// Server answers the handshake of a client, as Client does. It returns only after the client has
// confirmed: the first message of a handshake can be replayed, and nothing follows from it alone.
func Server(ctx context.Context, stream io.ReadWriteCloser, c ServerConfig) (*Conn, error) {
	return within(ctx, stream, func() (*Conn, error) { return c.accept(stream) })
}

// within bounds a handshake in time, by closing its stream.
func within(ctx context.Context, stream io.Closer, shake func() (*Conn, error)) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { abort(stream) })
	conn, err := shake()
	if !stop() {
		kind := turnstone.KindCanceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = turnstone.KindTimeout
		}
		err = turnstone.Errorf(OpHandshake, kind, subject, "the handshake: %w", ctx.Err())
	}
	if err != nil {
		abort(stream)
		return nil, err
	}
	return conn, nil
}

// shakeError returns an error of the handshake with the name of a manipulation.
func shakeError(f Fault, format string, args ...any) *turnstone.Error {
	return Fail(OpHandshake, f, subject, format, args...)
}

// gone returns the error of a stream that ended during the handshake.
func gone(err error) error {
	return turnstone.Errorf(OpHandshake, turnstone.KindDead, subject,
		"the stream ended during the handshake: %w", err).WithHint("connect again")
}

// start returns the state of a handshake that is bound to a statement, as newState does.
func start(config noise.Config, own *private, statement []byte) (
	state *noise.HandshakeState, erase func(), err error) {
	config.Pattern = noise.HandshakeIK
	config.Prologue = append([]byte(prologue), statement...)
	if state, erase, err = newState(config, own); err != nil {
		err = turnstone.NewError(OpHandshake, turnstone.KindInternal, subject, err)
	}
	return state, erase, err
}

func (c *ClientConfig) connect(stream io.ReadWriteCloser) (*Conn, error) {
	statement, err := hex.DecodeString(c.Statement.Hex())
	if err != nil || len(statement) != digestSize || c.Key.private == nil {
		return nil, turnstone.Errorf(OpHandshake, turnstone.KindInvalid, subject,
			"the client has no key, or the statement no digest")
	}
	state, erase, err := start(noise.Config{Initiator: true, PeerStatic: c.Server[:],
		Random: c.random}, c.Key.private, statement)
	if err != nil {
		return nil, err
	}
	defer erase()
	hello := append([]byte(magic), statement...)
	hello, _, _, err = state.WriteMessage(hello, nil)
	if err != nil {
		return nil, shakeError(FaultWeakKey, "the server's key: %w", err)
	}
	if _, err := stream.Write(hello); err != nil {
		return nil, gone(err)
	}
	in := bufio.NewReaderSize(stream, readBuffer)
	second, err := answer(in, hello)
	if err != nil {
		return nil, err
	}
	_, send, recv, err := state.ReadMessage(nil, second)
	switch {
	case errors.Is(err, errWeak):
		return nil, shakeError(FaultWeakKey, "the server's answer has a point of low order")
	case err != nil:
		return nil, shakeError(FaultKeySwapped,
			"the answer is not of the attested key %s, or was changed on its way", c.Server)
	}
	conn := newConn(stream, in, newHalf(send), newHalf(recv))
	conn.peer, conn.statement = c.Server, c.Statement
	if err := conn.frame(kindConfirm, nil); err != nil {
		return nil, gone(err)
	}
	return conn, nil
}

// answer reads the server's answer to hello, and returns Noise message 2.
func answer(in io.Reader, hello []byte) ([]byte, error) {
	var all [1 + secondSize]byte
	if _, err := io.ReadFull(in, all[:1]); err != nil {
		return nil, gone(err)
	}
	refused := func(kind turnstone.Kind, why, hint string) ([]byte, error) {
		return nil, turnstone.Errorf(OpHandshake, kind, subject,
			"refused, as the server or a relay says: %s", why).WithHint(hint)
	}
	const again = "request a new attestation"
	switch all[0] {
	case answerSecond:
	case answerUnknown:
		return refused(turnstone.KindNotFound, "the statement is not known there: it is "+
			"another sandbox or node, or one that was paused or started since", again)
	case answerExpired:
		return refused(turnstone.KindInvalid, "the statement has expired", again)
	case answerKey:
		return refused(turnstone.KindInvalid, "the statement does not name this client's key",
			"request an attestation for this key, with a grant of the owner")
	case answerFailed:
		return refused(turnstone.KindIntegrity,
			"the first message is not for the server's key and statement", again)
	case magic[0]:
		return nil, shakeError(FaultReflected, "the first message of this side came back")
	default:
		return nil, shakeError(FaultAltered, "the answer begins with byte %#x", all[0])
	}
	if _, err := io.ReadFull(in, all[1:]); err != nil {
		return nil, gone(err)
	}
	if bytes.Contains(hello, all[1:]) {
		return nil, shakeError(FaultReflected, "the first message of this side came back")
	}
	return all[1:], nil
}

func (c *ServerConfig) accept(stream io.ReadWriteCloser) (*Conn, error) {
	if c.Registry == nil {
		return nil, turnstone.Errorf(OpHandshake, turnstone.KindInvalid, subject,
			"the server has no registry")
	}
	in := bufio.NewReaderSize(stream, readBuffer)
	statement, clients, err := c.admit(stream, in)
	if err != nil {
		return nil, err
	}
	if c.Key.private == nil {
		refuse(stream, answerUnknown)
		return nil, turnstone.Errorf(OpHandshake, turnstone.KindInvalid, subject,
			"the server has no key")
	}
	digest, _ := hex.DecodeString(statement.Hex())
	state, erase, err := start(noise.Config{Random: c.random}, c.Key.private, digest)
	if err != nil {
		return nil, err
	}
	defer erase()
	first := make([]byte, firstSize)
	if _, err := io.ReadFull(in, first); err != nil {
		return nil, gone(err)
	}
	if _, _, _, err := state.ReadMessage(nil, first); err != nil {
		refuse(stream, answerFailed)
		if errors.Is(err, errWeak) {
			return nil, shakeError(FaultWeakKey, "the client sent a point of low order")
		}
		return nil, shakeError(FaultKeySwapped,
			"the first message is not for this key and the statement %s", statement)
	}
	peer := PublicKey(state.PeerStatic())
	if !slices.Contains(clients, peer) {
		refuse(stream, answerKey)
		return nil, turnstone.Errorf(OpHandshake, turnstone.KindInvalid, subject,
			"the statement %s does not name the client's key %s", statement, peer)
	}
	second, recv, send, err := state.WriteMessage([]byte{answerSecond}, nil)
	if err != nil {
		refuse(stream, answerFailed)
		return nil, shakeError(FaultWeakKey, "the client sent a point of low order")
	}
	if _, err := stream.Write(second); err != nil {
		return nil, gone(err)
	}
	conn := newConn(stream, in, newHalf(send), newHalf(recv))
	conn.peer, conn.statement = peer, statement
	return conn, conn.confirmed()
}

// admit reads which statement a client has, and returns the keys that the statement admits.
func (c *ServerConfig) admit(stream io.Writer, in io.Reader) (turnstone.Digest, []PublicKey,
	error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(in, prefix[:len(magic)]); err != nil {
		return "", nil, gone(err)
	}
	if string(prefix[:len(magic)]) != magic {
		return "", nil, turnstone.Errorf(OpHandshake, turnstone.KindInvalid, subject,
			"the client does not speak this protocol: it began with %q", prefix[:len(magic)])
	}
	if _, err := io.ReadFull(in, prefix[len(magic):]); err != nil {
		return "", nil, gone(err)
	}
	d := turnstone.Digest("sha256:" + hex.EncodeToString(prefix[len(magic):]))
	clients, err := c.Registry.Clients(d)
	switch {
	case err == nil:
	case FaultOf(err) == FaultExpired:
		refuse(stream, answerExpired)
	default:
		refuse(stream, answerUnknown)
	}
	return d, clients, err
}

// refuse tells the client why the handshake ends; the client may be gone.
func refuse(stream io.Writer, reason byte) { _, _ = stream.Write([]byte{reason}) }

// confirmed waits for the client's first frame.
func (c *Conn) confirmed() error {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	kind, err := c.next()
	empty := len(c.rest) == 0
	c.release()
	switch {
	case FaultOf(err) == FaultTruncated:
		return err
	case err != nil:
		return shakeError(FaultReplayed,
			"the first message is an old one: its sender does not know the keys (%w)", err)
	case kind != kindConfirm || !empty:
		return shakeError(FaultReplayed, "the client's first frame has kind %d", kind)
	}
	return nil
}
