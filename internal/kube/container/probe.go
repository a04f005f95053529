package container

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

const (
	// hungTime is how long after a probe's time its calls may take: what answers none is not there.
	hungTime = 30 * time.Second
	// maxAnswer bounds what of an answer is read, in bytes.
	maxAnswer = 10 << 10
	maxWords  = 200
)

// errHung says that a probe's calls have no answer, although their time is up.
var errHung = errors.New("the sandbox does not answer")

// probe asks once. why is empty for a good answer. The error is about the connection.
func (s *session) probe(ctx context.Context, q *agents.Probe) (why string, err error) {
	bounded, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	type answer struct {
		why string
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		switch {
		case len(q.Exec) > 0:
			a.why, a.err = s.execute(bounded, q.Exec)
		case q.HTTP != nil:
			a.why = s.get(bounded, q.HTTP)
		case q.GRPC != nil:
			a.why = s.health(bounded, q.GRPC)
		default:
			a.why = s.connect(bounded, q.TCP)
		}
		done <- a
	}()
	hung := time.NewTimer(q.Timeout + hungTime)
	defer hung.Stop()
	select {
	case a := <-done:
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case bounded.Err() != nil:
			return fmt.Sprintf("no answer in %s", q.Timeout), nil
		}
		return a.why, a.err
	case <-hung.C:
		return "", errHung
	case <-s.w.Done():
		return "", dead(s.w)
	}
}

// execute runs a command in the sandbox. Nothing reads its output: it is told by its status.
func (s *session) execute(ctx context.Context, argv []string) (why string, err error) {
	id := "probe-" + strings.ToLower(rand.Text()[:12])
	_, err = s.w.ProcessStart(ctx, &wire.ProcessStartParams{ProcessID: id, Argv: argv, Cwd: s.Main.Cwd,
		User: s.Main.User, Detach: true, KillOnDisconnect: true})
	if err != nil {
		return words(err.Error()), nil
	}
	r, err := s.w.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: id})
	go s.release(context.WithoutCancel(ctx), id, err != nil)
	switch {
	case err != nil:
		return words(err.Error()), nil
	case r.Exit.ExitCode != 0 || r.Exit.Signal != "":
		return "the command " + exitText(&r.Exit), nil
	}
	return "", nil
}

// release lets the sandbox forget the process of a probe, which is ended first: it would forget the container's
// own processes in its place. That can be done when its output was read, a moment after its end.
func (s *session) release(ctx context.Context, id string, kill bool) {
	ctx, cancel := context.WithTimeout(ctx, hungTime)
	defer cancel()
	if kill {
		_ = s.w.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: id, Signal: "KILL"})
	}
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.w.ProcessRelease(ctx, &wire.ProcessReleaseParams{ProcessID: id})
		if turnstone.KindOf(err) != turnstone.KindInvalid || !sleep(ctx, s.w.Done(), wait) {
			return
		}
	}
}

// connect opens a connection to a port, and closes it.
func (s *session) connect(ctx context.Context, port uint16) (why string) {
	c, err := s.w.ConnectPort(ctx, wire.SandboxConnectParams{Port: int64(port), Loopback: s.Loopback})
	if err != nil {
		return words(err.Error())
	}
	_ = c.Close()
	return ""
}

// health asks the standard health service of gRPC.
func (s *session) health(ctx context.Context, g *agents.GRPC) (why string) {
	c, err := grpc.NewClient("passthrough:///sandbox", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("kube-probe/turnstone"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.w.ConnectPort(ctx, wire.SandboxConnectParams{Port: int64(g.Port), Loopback: s.Loopback})
		}))
	if err != nil {
		return words(err.Error())
	}
	defer func() { _ = c.Close() }()
	a, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{Service: g.Service})
	switch {
	case err != nil:
		return words(err.Error())
	case a.Status != healthpb.HealthCheckResponse_SERVING:
		return "the health service answers " + a.Status.String()
	}
	return ""
}

// get asks a server of the sandbox. A redirection elsewhere is a good answer, as for a kubelet.
func (s *session) get(ctx context.Context, h *agents.HTTPGet) (why string) {
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // as a kubelet: the channel says whose it is
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			return s.w.ConnectPort(ctx, wire.SandboxConnectParams{Port: int64(n), Loopback: s.Loopback})
		}}
	defer t.CloseIdleConnections()
	const host = "sandbox"
	c := &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if r.URL.Hostname() != host || len(via) >= 10 {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	scheme := "http"
	if h.TLS {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s:%d/%s", scheme, host, h.Port,
		strings.TrimPrefix(h.Path, "/")), nil)
	if err != nil {
		return words(err.Error())
	}
	r.Header.Set("User-Agent", "kube-probe/turnstone")
	for n, name := range h.Names {
		if http.CanonicalHeaderKey(name) == "Host" {
			r.Host = h.Values[n]
			continue
		}
		r.Header.Add(name, h.Values[n])
	}
	a, err := c.Do(r)
	if err != nil {
		return words(err.Error())
	}
	defer func() { _ = a.Body.Close() }()
	_, _ = io.CopyN(io.Discard, a.Body, maxAnswer)
	if a.StatusCode < 200 || a.StatusCode > 399 {
		return fmt.Sprintf("the answer has the status %d", a.StatusCode)
	}
	return ""
}

// words bounds an error's text.
func words(s string) string { return cut(s[:min(len(s), maxWords)]) }
