package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"turnstone.dev/turnstone"
)

// Defaults of an Upgrade.
const (
	defaultDial     = 10 * time.Second
	defaultHeadTime = 10 * time.Second
	defaultMaxHead  = 8 << 10
)

// An Upgrade forwards the WebSocket upgrade of a client, which the caller has authorised, to a
// node.
//
// The node's request is a new one. It has the client's Sec-WebSocket-Key, the subprotocols among
// Protocols, and what the control plane decided: Host, Target and Header. No other field, no query
// and no byte of the client goes on before the node has switched protocols; so the node sees no
// token, and a client can neither add a field that the node trusts nor hide a request behind its
// own.
type Upgrade struct {
	// Dial connects to the node.
	Dial func(context.Context) (net.Conn, error)
	// Host and Target are the request's authority and path at the node.
	Host, Target string
	// Header is what the node is told beside the handshake.
	Header http.Header
	// Protocols are the subprotocols that a client may ask for. Others are dropped: browsers put
	// tokens there.
	Protocols []string
	// DialTime, HeadTime and MaxHead limit the dial, the time from the request to the head of the
	// node's answer, and the sizes of both heads. 0 selects 10 s, 10 s and 8 KiB.
	DialTime, HeadTime time.Duration
	MaxHead            int
	// Refuse answers a client whose upgrade failed; nil: a plain text with StatusOf the error.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
	// Options are for Copy.
	Options Options
}

func (u *Upgrade) maxHead() int {
	if u.MaxHead > 0 {
		return u.MaxHead
	}
	return defaultMaxHead
}

// Forward forwards r and copies until the channel ends. It answers the client in every case. The
// end of r's context, which the base context of the server can cause, ends it. Sizes do not count
// heads.
func (u *Upgrade) Forward(w http.ResponseWriter, r *http.Request) (Sizes, error) {
	p, err := u.Begin(w, r)
	if err != nil {
		return p.sizes(), err
	}
	return p.Copy(r.Context())
}

// A Pair is an upgraded client and its node. It no longer needs the handler of the request,
// whose end frees what the server keeps for a request.
type Pair struct {
	client, node net.Conn
	sent         int64 // to the client, before Copy
	options      Options
}

// Begin is the first part of Forward: it forwards r, and answers the client in every case. The Pair
// of an error is only for its size.
func (u *Upgrade) Begin(w http.ResponseWriter, r *http.Request) (*Pair, error) {
	n, err := u.open(r)
	if err != nil {
		u.refuse(w, r, err)
		return &Pair{}, err
	}
	client, err := takeOver(w)
	if err != nil {
		_ = n.conn.Close()
		return &Pair{}, err
	}
	p := &Pair{client: client, node: n.conn, options: u.Options}
	if p.sent, err = u.switchClient(r.Context(), client, n); err != nil {
		_, _ = client.Close(), n.conn.Close()
	}
	return p, err
}

// Copy is the second part of Forward: see the function Copy. It is called once.
func (p *Pair) Copy(ctx context.Context) (Sizes, error) {
	sizes, err := Copy(ctx, p.client, p.node, p.options)
	sizes.ToClient += p.sent
	return sizes, err
}

func (p *Pair) sizes() Sizes { return Sizes{ToClient: p.sent} }

// refuse answers a client whose request has not been taken over.
func (u *Upgrade) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if u.Refuse != nil {
		u.Refuse(w, r, err)
		return
	}
	status := StatusOf(err)
	h := w.Header()
	h.Set("Connection", "close") // what follows the request is not looked at
	var e *RefusedError
	if errors.As(err, &e) && e.RetryAfter != "" {
		h.Set("Retry-After", e.RetryAfter)
	}
	if status == http.StatusUpgradeRequired {
		h.Set("Connection", "close, Upgrade")
		h.Set("Upgrade", "websocket")
		h.Set("Sec-WebSocket-Version", "13")
	}
	message := http.StatusText(status)
	if turnstone.KindOf(err) == turnstone.KindInvalid {
		message = err.Error()
	}
	http.Error(w, message, status)
}

// A switched is a node that has switched protocols.
type switched struct {
	conn     net.Conn
	accept   string // the answer to the client's key
	protocol string // may be empty
	rest     []byte // what the node sent after its answer
}

// open dials the node, forwards the request and checks the answer.
func (u *Upgrade) open(r *http.Request) (*switched, error) {
	if err := checkRequest(r); err != nil {
		return nil, err
	}
	head, offered, err := u.head(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), orDefault(u.DialTime, defaultDial))
	conn, err := u.Dial(ctx)
	cancel()
	if err != nil {
		return nil, nodeError(r.Context(), "dial", err)
	}
	n, err := u.exchange(r, conn, head, offered)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return n, nil
}

// exchange sends the request to the node and reads its answer.
func (u *Upgrade) exchange(r *http.Request, conn net.Conn, head []byte,
	offered []string) (*switched, error) {
	ctx := r.Context()
	_ = conn.SetDeadline(time.Now().Add(orDefault(u.HeadTime, defaultHeadTime)))
	acted := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		defer close(acted)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !release() {
			<-acted
		}
	}()
	if _, err := conn.Write(head); err != nil {
		return nil, nodeError(ctx, "write the request", err)
	}
	text, rest, err := readHead(conn, u.maxHead())
	if err != nil {
		return nil, nodeError(ctx, "read the answer", err)
	}
	a, err := parseAnswer(text)
	if err != nil {
		return nil, badAnswer("is malformed: %w", err)
	}
	key := r.Header.Get("Sec-WebSocket-Key")
	if err := a.check(key, offered); err != nil {
		return nil, err
	}
	return &switched{conn: conn, accept: acceptOf(key), rest: rest,
		protocol: a.fields.Get("Sec-WebSocket-Protocol")}, nil
}

func orDefault(d, or time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return or
}

// nodeError is the error of a node that cannot be reached or does not answer.
func nodeError(ctx context.Context, what string, err error) error {
	kind, hint := turnstone.KindUnavailable, "check that the node runs, and try again"
	var timeout interface{ Timeout() bool }
	switch {
	case ctx.Err() != nil:
		kind, hint, err = turnstone.KindCanceled, "", context.Cause(ctx)
	case errors.As(err, &timeout) && timeout.Timeout():
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError("relay.upgrade", kind, "the node",
		fmt.Errorf("%s: %w", what, cause(err))).WithHint(hint)
}

// takeOver takes the client's connection from the server. A client that sent anything after its
// request is refused: it cannot know yet which protocol is spoken.
func takeOver(w http.ResponseWriter) (net.Conn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the server cannot upgrade", http.StatusInternalServerError)
		return nil, internal("take the connection over: %w", err)
	}
	if hasEarly(conn, buffered.Reader) {
		hangUp(conn)
		return nil, badRequest(http.StatusBadRequest, "has bytes after its end")
	}
	return conn, nil
}

// hangUp answers a bad request. It reads what the client sent, within bounds: a socket that is
// closed with unread bytes is reset, and the client would lose the answer.
func hangUp(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	_, err := io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"+
		"Content-Length: 0\r\n\r\n")
	if c, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, conn, 64<<10)
	}
	_ = conn.Close()
}

func hasEarly(conn net.Conn, r *bufio.Reader) bool { return r.Buffered() > 0 || early(conn) }

// switchClient tells the client that the protocol is switched, and sends what the node said since;
// it returns the size of the latter.
func (u *Upgrade) switchClient(ctx context.Context, client net.Conn, n *switched) (int64, error) {
	text := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: " + n.accept + "\r\n"
	if n.protocol != "" {
		text += "Sec-WebSocket-Protocol: " + n.protocol + "\r\n"
	}
	text += "\r\n"
	_ = client.SetDeadline(time.Now().Add(orDefault(u.Options.Write, defaultHeadTime)))
	written, err := client.Write(append([]byte(text), n.rest...))
	if err == nil {
		return int64(len(n.rest)), nil
	}
	e := &EndError{Side: Client, Reason: Broken, Err: cause(err)}
	switch {
	case ctx.Err() != nil:
		e = &EndError{Reason: Canceled, Err: context.Cause(ctx)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Reason = Stalled
	}
	return int64(max(written-len(text), 0)), e.typed()
}
