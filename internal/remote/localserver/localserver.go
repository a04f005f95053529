// Package localserver starts the server of this machine, which serves one user and ends by itself when
// nobody uses it: turn serve --local.
package localserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
)

// Times of a start.
const (
	startTime = 2 * time.Minute
	firstLook = 5 * time.Millisecond // doubled, up to lastLook
	lastLook  = 100 * time.Millisecond
	launches  = 3 // of a program that ends, as it does where another process's server begins, or ends, just then
)

// maxLog bounds the log of servers in bytes: a longer one begins again.
const maxLog = 1 << 20

// A Starter starts the server of a state directory. Its methods are safe for concurrent use.
type Starter struct {
	Dir     string // the state directory; empty: the user's
	Program string // path of turn; empty: that of PATH, or that beside this program

	mu sync.Mutex
}

// Start returns when the server of this machine answers and has a node. It starts one, which outlives
// this process, if none runs. The error is of kind Unavailable.
func (s *Starter) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if _, ready := s.answers(ctx); ready {
		return nil
	}
	dir, err := statedir.Open(s.Dir)
	if err != nil {
		return err
	}
	program, err := s.find()
	if err != nil {
		return err
	}
	log, err := openLog(dir)
	if err != nil {
		return failed(program, err)
	}
	defer func() { _ = log.Close() }()
	ended, err := launch(ctx, program, dir.Root, log)
	if err != nil {
		return failed(program, err)
	}
	for look, left := firstLook, launches-1; ; look = min(2*look, lastLook) {
		gone := ended() // before the question: another server may answer when this one ends
		serves, ready := s.answers(ctx)
		switch {
		case ready:
			return nil
		case gone && serves: // another process's server, whose node registers a moment later
		case gone && left > 0:
			left--
			if ended, err = launch(ctx, program, dir.Root, log); err != nil {
				return failed(program, err)
			}
		case gone:
			return failed(program, errors.New(lastLine(log))).WithHint("read " + log.Name())
		}
		select {
		case <-ctx.Done():
			return failed(program, fmt.Errorf("it does not answer: %w", context.Cause(ctx))).
				WithHint("read " + log.Name())
		case <-time.After(look):
		}
	}
}

func failed(program string, err error) *turnstone.Error {
	return turnstone.NewError("server.start", turnstone.KindUnavailable, program+" serve --local", err)
}

// answers reports whether the server answers, and whether it has a node, too.
func (s *Starter) answers(ctx context.Context) (serves, ready bool) {
	server, err := hosts.Client{Dir: s.Dir}.Operator(ctx)
	if err != nil {
		return false, false
	}
	defer func() { _ = server.Close() }()
	a, err := server.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	return err == nil, err == nil && len(a.Msg.Nodes) > 0
}

// find returns the path of turn.
func (s *Starter) find() (string, error) {
	if s.Program != "" {
		return s.Program, nil
	}
	path, err := exec.LookPath("turn")
	if err == nil {
		return filepath.Abs(path)
	}
	if self, failed := os.Executable(); failed == nil {
		if path, failed := exec.LookPath(filepath.Join(filepath.Dir(self), "turn")); failed == nil {
			return path, nil
		}
	}
	return "", turnstone.NewError("server.start", turnstone.KindUnavailable, "turn", err).
		WithHint("install turn, or use a server: set TURN_HOST and TURN_TOKEN")
}

// openLog opens the log of servers that are started here.
func openLog(dir *statedir.Dir) (*os.File, error) {
	if _, err := dir.MkdirAll("server"); err != nil {
		return nil, err
	}
	path, flags := dir.Path("server", "local.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(path, flags, 0o600)
}

// lastLine returns the end of the log, which says why the server has ended.
func lastLine(log *os.File) string {
	const end = 4 << 10
	info, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	b := make([]byte, min(end, info.Size()))
	_, _ = log.ReadAt(b, info.Size()-int64(len(b)))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for n := len(lines) - 1; n >= 0; n-- { // a hint is below its error
		if !strings.HasPrefix(lines[n], "hint: ") {
			return "it ended: " + strings.TrimPrefix(lines[n], "turn: ")
		}
	}
	return "it ended"
}
