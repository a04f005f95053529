// Package mcpcmd is the command turn mcp: the tools of package mcpdoor over standard input and
// output, on this machine or on the host that commands use.
package mcpcmd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/mcpdoor"
)

// Cmd is the command.
type Cmd struct {
	Session string `help:"Work in this session (default: a new one)." placeholder:"NAME"`
}

// Help returns the text below the command's summary.
func (c *Cmd) Help() string {
	return `A client of the Model Context Protocol starts this command, and speaks to it over
standard input and output. Its tools run documents, and commands in one sandbox of the
session; what is done there becomes a turn when the client ends the connection.

Documents and calls of the client are untrusted, as documents from a pipe are: they read
no file of this machine, and config.toml alone grants what they ask for.

Exit status: 0 the client ended the connection; 2 the command line is invalid; 3 the
protocol was broken, or the work in a sandbox could not be kept.`
}

// Examples returns command lines for the help.
func (c *Cmd) Examples() []string {
	return []string{"turn mcp", "turn mcp --session research"}
}

// Times of the end.
const (
	// answerTime is how long calls may take to end after the client has gone.
	answerTime = time.Minute
	closeTime  = 3 * time.Minute
)

// maxResource bounds a resource in bytes of JSON: the official npm clients end the connection at a
// message of 10 MiB.
const maxResource = 10<<20 - 256<<10

// Run serves the client.
func (c *Cmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		door := mcpdoor.New(mcpdoor.Options{Log: slog.Default(), MaxResource: maxResource,
			Open: func(context.Context, *auth.TokenInfo) (mcpdoor.Place, error) { return c.place(a) }})
		err := serve(ctx, door.Server(), &input{r: a.Stdin, ended: make(chan struct{})}, a.Stdout)
		// also after an interruption: what runs is cancelled, and what was done is kept
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		if err = errors.Join(err, door.Close(end)); err != nil {
			return cli.Exit(cli.ExitAborted, err)
		}
		return nil
	})
}

// place opens where the tools work. It is used after the call that opens it has ended.
func (c *Cmd) place(a *cli.App) (mcpdoor.Place, error) {
	x, err := a.Open(context.Background())
	if err != nil {
		return mcpdoor.Place{}, err
	}
	s, err := a.OpenSandboxes(context.Background())
	if err != nil {
		return mcpdoor.Place{}, errors.Join(err, x.Close())
	}
	turns, ok := s.(cli.SandboxTurns)
	if !ok {
		return mcpdoor.Place{}, errors.Join(x.Close(), turnstone.Errorf("mcp", turnstone.KindUnavailable,
			"host", "its sandboxes cannot be kept as turns"))
	}
	// a client may kill this process: what it leaves then must not live long
	lives, ok := s.(cli.SandboxExtender)
	if !ok {
		return mcpdoor.Place{}, errors.Join(x.Close(), turnstone.Errorf("mcp", turnstone.KindUnavailable,
			"host", "its sandboxes cannot be extended"))
	}
	return mcpdoor.Place{Turns: x, Session: c.Session, Close: x.Close, Extend: lives.Extend,
		Sandboxes: struct {
			cli.Sandboxes
			cli.SandboxTurns
		}{s, turns}}, nil
}

// serve serves the client until it ends the connection, or ctx ends.
func serve(ctx context.Context, server *mcp.Server, in *input, out io.Writer) error {
	s, err := server.Connect(ctx, &mcp.IOTransport{Reader: in, Writer: keepOpen{out}}, nil)
	if err != nil {
		return turnstone.NewError("mcp", turnstone.KindUnavailable, "standard input", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	select {
	case err := <-done:
		return ended(err)
	case <-ctx.Done():
		return nil
	case <-in.ended:
	}
	select {
	case err := <-done:
		return ended(err)
	case <-ctx.Done():
		return nil
	case <-time.After(answerTime): // an answer that nobody reads
		return turnstone.Errorf("mcp", turnstone.KindTimeout, "the client",
			"does not read an answer")
	}
}

// ended returns the error of an end that is not the client's wish.
func ended(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return turnstone.NewError("mcp", turnstone.KindInvalid, "the client", err)
}

// An input is standard input, which tells when it has ended.
type input struct {
	r     io.ReadCloser
	once  sync.Once
	ended chan struct{}
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if err != nil {
		i.once.Do(func() { close(i.ended) })
	}
	return n, err
}

// Close implements io.Closer.
func (i *input) Close() error { return i.r.Close() }

// keepOpen is standard output, which others close.
type keepOpen struct{ io.Writer }

// Close implements io.Closer.
func (keepOpen) Close() error { return nil }
