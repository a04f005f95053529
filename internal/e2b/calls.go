package e2b

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/principal"
)

// clients returns clients of the control API. Calls are made in the name of their context's
// principal, by the door's client key for its tenant.
func (d *Door) clients() (connectv1.SandboxServiceClient, connectv1.SessionServiceClient) {
	c := &http.Client{Transport: inProcess{d.o.Control}}
	o := append(api.ClientOptions(), connect.WithInterceptors(connect.UnaryInterceptorFunc(d.prove)))
	const base = "http://controller"
	return connectv1.NewSandboxServiceClient(c, base, o...), connectv1.NewSessionServiceClient(c, base, o...)
}

// prove names the door's client key in a request, and shows the node that the door has it.
func (d *Door) prove(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		p, _ := auth.FromContext(ctx)
		m, ok := r.Any().(proto.Message)
		if !ok {
			return nil, turnstone.Errorf("e2b.call", turnstone.KindInternal, "the call", "has no message")
		}
		if err := d.sign(m, p.Tenant); err != nil {
			return nil, err
		}
		if at, ok := ctx.Value(callerKey{}).(string); ok {
			r.Header().Set(principal.CallerHeader, at)
		}
		a, err := next(ctx, r)
		return a, api.FromConnect(err)
	}
}

// callerKey finds the caller's address in a context.
type callerKey struct{}

// sign adds proofs to a request that names a client, or may.
func (d *Door) sign(m proto.Message, tenant string) error {
	pair, err := d.o.Key.Client(tenant)
	if err != nil {
		return err
	}
	if c, ok := m.(interface{ GetClient() *v1.ChannelClient }); ok && c.GetClient() == nil {
		f := m.ProtoReflect().Descriptor().Fields().ByName("client")
		m.ProtoReflect().Set(f, protoreflect.ValueOfMessage(newClient(pair).ProtoReflect()))
	}
	clients := api.Clients(m)
	if len(clients) == 0 {
		return nil
	}
	message, err := channel.Prove(pair, d.o.Node.ChannelKey(), channel.Claim{Tenant: tenant,
		Request: api.ProofDigest(m)}, time.Now())
	if err != nil {
		return err
	}
	for n, c := range clients {
		if n > 0 { // a proof is valid once
			if message, err = channel.Prove(pair, d.o.Node.ChannelKey(), channel.Claim{Tenant: tenant,
				Request: api.ProofDigest(m)}, time.Now()); err != nil {
				return err
			}
		}
		c.Proofs = []*v1.KeyProof{{Node: d.o.Node.Name(), Message: message}}
	}
	return nil
}

// newClient returns the client of a new statement.
func newClient(pair channel.KeyPair) *v1.ChannelClient {
	var nonce attest.Nonce
	_, _ = rand.Read(nonce[:]) // documented never to fail
	return &v1.ChannelClient{ClientPublicKey: pair.Public[:], Nonce: nonce[:]}
}

// inProcess is a transport to a handler of this process, for unary calls.
type inProcess struct{ h http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "in-process"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	t.h.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if w.body.Len() > maxAnswer {
		return nil, errors.New("the answer is too long")
	}
	return &http.Response{StatusCode: w.status, Status: strconv.Itoa(w.status), Proto: "HTTP/1.1",
		ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Request: r,
		ContentLength: int64(w.body.Len()), Body: io.NopCloser(&w.body)}, nil
}

// maxAnswer bounds an answer of the control API, which is at most 4 MiB.
const maxAnswer = 8 << 20

// A recorder is a http.ResponseWriter that keeps the answer.
type recorder struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if !w.wrote {
		w.status, w.wrote = status, true
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	w.wrote = true
	return w.body.Write(b)
}

// Flush implements http.Flusher, which package connect asks for.
func (w *recorder) Flush() {}
