package plain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// An execRequest is the body of a request to exec.
type execRequest struct {
	Command []string          `json:"command"` // or script
	Script  string            `json:"script"`  // for /bin/sh
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	User    string            `json:"user"`
	Stdin   string            `json:"stdin"`
	Timeout float64           `json:"timeout"` // seconds; 0: defaultTimeout
}

// An execAnswer is how a command ended.
type execAnswer struct {
	ExitCode int64  `json:"exit_code"` // 128 plus the signal's number if a signal ended it
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out"`
	// The outputs: as text, or in base64 if they are not UTF-8.
	Stdout          string  `json:"stdout"`
	StdoutBase64    []byte  `json:"stdout_base64,omitempty"`
	StdoutTruncated bool    `json:"stdout_truncated"`
	Stderr          string  `json:"stderr"`
	StderrBase64    []byte  `json:"stderr_base64,omitempty"`
	StderrTruncated bool    `json:"stderr_truncated"`
	Duration        float64 `json:"duration"` // seconds
}

// Bounds of commands.
const (
	defaultTimeout = time.Minute
	maxTimeout     = time.Hour
	maxWords       = 1000
)

var errTimeUp = errors.New("the time is up")

// parseExec decodes and checks a request.
func parseExec(b []byte) (execRequest, time.Duration, error) {
	bad := func(format string, args ...any) (execRequest, time.Duration, error) {
		return execRequest{}, 0, turnstone.Errorf("plain.exec", turnstone.KindInvalid,
			"the request", format, args...)
	}
	var q execRequest
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return bad("%w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("has more than one value")
	}
	switch {
	case (len(q.Command) == 0) == (q.Script == ""):
		return bad("has no command and no script, or both")
	case len(q.Command) > maxWords || len(q.Env) > maxWords:
		return bad("has more than %d words or variables", maxWords)
	case strings.ContainsRune(strings.Join(q.Command, "")+q.Script+q.Cwd+q.User, 0):
		return bad("has a zero byte")
	}
	if q.Script != "" {
		q.Command = []string{"/bin/sh", "-c", q.Script}
	}
	for name, value := range q.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return bad("has a variable that no process can have")
		}
	}
	timeout := defaultTimeout
	if q.Timeout != 0 {
		if !(q.Timeout > 0 && q.Timeout <= maxTimeout.Seconds()) { // also not a number
			return bad("has a timeout that is not from 0 to %d seconds", int(maxTimeout.Seconds()))
		}
		timeout = time.Duration(q.Timeout * float64(time.Second))
	}
	return q, timeout, nil
}

// exec runs a command in a sandbox of the caller's tenant.
func (s *Service) exec(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	id := turnstone.SandboxID(r.PathValue("id"))
	if err := p.Allow(auth.Request{Scope: auth.SandboxesConnect, Sandbox: id}); err != nil {
		return err
	}
	body, err := read(w, r, maxExec)
	if err != nil {
		return err
	}
	q, timeout, err := parseExec(body)
	if err != nil {
		return err
	}
	box, err := s.sandbox(r.Context(), p, id)
	if err != nil {
		return err
	}
	cmd := sandboxes.Command{Argv: q.Command, Cwd: q.Cwd, User: q.User}
	for name, value := range q.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if q.Stdin != "" {
		cmd.Stdin = strings.NewReader(q.Stdin)
	}
	out, errs := &bounded{}, &bounded{}
	cmd.Stdout, cmd.Stderr = out, errs
	ctx, cancel := context.WithTimeoutCause(r.Context(), timeout, errTimeUp)
	defer cancel()
	began := time.Now()
	exit, err := box.Exec(ctx, id, cmd)
	a := execAnswer{ExitCode: exit.ExitCode, Signal: exit.Signal,
		Duration: time.Since(began).Seconds()}
	if err != nil {
		if !errors.Is(context.Cause(ctx), errTimeUp) {
			return started(err)
		}
		a.TimedOut = true
	}
	a.Stdout, a.StdoutBase64, a.StdoutTruncated = out.result()
	a.Stderr, a.StderrBase64, a.StderrTruncated = errs.result()
	answer(w, http.StatusOK, a)
	return nil
}

// sandbox returns the sandboxes of the caller's tenant, if the caller may use this one.
func (s *Service) sandbox(ctx context.Context, p auth.Principal, id turnstone.SandboxID) (
	Sandboxes, error) {
	const op = "plain.exec"
	t, err := s.o.Tenant(ctx, p.Tenant)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, p.See(op, "sandbox "+string(id), auth.Owner{})
	}
	if err != nil {
		return nil, err
	}
	owner := auth.Owner{}
	i, err := t.Sandboxes.Get(id)
	switch {
	case err == nil:
		owner = auth.Owner{Tenant: p.Tenant, Sandbox: id, Template: i.Image}
		if err := p.See(op, fmt.Sprintf("sandbox %.80s", id), owner); err != nil {
			return nil, err
		}
		if err := t.open(p, id); err != nil {
			return nil, err
		}
		if i.Session != nil || i.Parent != "" {
			// what it began with is content of a client key, which no call in the clear proves
			return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox "+string(id),
				"began with the contents of a session, a snapshot or another sandbox").
				WithHint("use its channel: turn sandbox exec")
		}
	case turnstone.KindOf(err) != turnstone.KindNotFound:
		return nil, err
	}
	return t.Sandboxes, p.See(op, fmt.Sprintf("sandbox %.80s", id), owner)
}

// open refuses a sandbox that a client key owns, which no call in the clear proves.
func (t Tenant) open(p auth.Principal, id turnstone.SandboxID) error {
	if t.Open != nil {
		if open, err := t.Open(id, operator(p)); err != nil || open {
			return err
		}
	}
	return turnstone.Errorf("plain.exec", turnstone.KindDenied, "sandbox "+string(id),
		"belongs to a client key, and a call in the clear proves none").
		WithHint("use its channel: turn sandbox exec; or create one without client")
}

// started returns the error of a command. What was wrong with the command is the caller's fault.
func started(err error) error {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Op == wire.MethodProcessStart && e.Kind == turnstone.KindNotFound {
		return turnstone.Errorf("plain.exec", turnstone.KindInvalid, "the command", "%w", err)
	}
	return err
}

// bounded keeps the beginning of an output.
type bounded struct {
	mu  sync.Mutex
	buf bytes.Buffer
	cut bool
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := maxOutput - b.buf.Len()
	b.cut = b.cut || len(p) > room
	_, _ = b.buf.Write(p[:min(len(p), room)])
	return len(p), nil
}

func (b *bounded) result() (text string, raw []byte, cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.buf.Bytes()
	if b.cut { // maybe in the middle of a character
		for n := 0; n < utf8.UTFMax && !utf8.Valid(kept[:len(kept)-n]); n++ {
			if utf8.Valid(kept[:len(kept)-n-1]) {
				kept = kept[:len(kept)-n-1]
				break
			}
		}
	}
	if utf8.Valid(kept) {
		return string(kept), nil, b.cut
	}
	return "", bytes.Clone(kept), b.cut
}
