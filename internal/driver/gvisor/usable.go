package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/subprocess"
)

// A verdict says whether sandboxes start here, with its dependencies.
type verdict struct {
	Usable bool      `json:"usable"`
	Reason string    `json:"reason"`
	When   time.Time `json:"when"`
	Host   string    `json:"host"`
}

// proofLimit is how long a program in a sandbox may take to prove that a sandbox starts. It takes a
// tenth of a second.
const proofLimit = 20 * time.Second

// noLasts is how long a failed start is remembered: an administrator may repair the host, and it
// may only have lacked a resource.
const noLasts = time.Minute

// Usable reports whether a sandbox really starts here, and why or why not. The verdict is
// determined once, by starting a sandbox, and remembered until runsc, the host's kernel, its CPU,
// the user or the settings of user namespaces change; a failure is remembered for a minute only.
func (s *Substrate) Usable(ctx context.Context) (ok bool, why string) {
	on := fmt.Sprintf("%s|%s|%s|%d|%s", s.program.Binary.Digest, s.kernel, s.hostCPU, os.Geteuid(),
		host.NamespaceSettings())
	path := s.home.Path("cache", "gvisor.json")
	var known verdict
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &known) == nil &&
		known.Host == on &&
		(known.Usable || time.Since(known.When).Abs() < noLasts) {
		return known.Usable, known.Reason
	}
	s.progress("checking whether gVisor runs a sandbox (once)")
	v, err := s.prove(ctx)
	if err != nil {
		return false, err.Error() // unrelated to gVisor: ask again next time
	}
	v.Host = on
	b, _ := json.Marshal(v)                 // plain data always encodes
	_ = filestamp.WriteFile(path, b, 0o600) // a verdict that is not remembered is determined again
	return v.Usable, v.Reason
}

// prove runs a program of the host in a sandbox that sees the host's files, read-only.
func (s *Substrate) prove(ctx context.Context) (verdict, error) {
	dir, err := os.MkdirTemp("", "turn-gvisor-*")
	if err != nil {
		return verdict{}, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	began := time.Now()
	cmd := s.command(dir, "do", "--quiet", "true")
	out := console.Tail{Limit: 8 << 10}
	// A pipe, not /dev/null: root's runsc gives its standard streams to the sandbox's user.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &out, &out
	started := false
	err = subprocess.Run(ctx, cmd, subprocess.Options{Started: func() { started = true }})
	switch {
	case !started:
		return verdict{Reason: noStart + host.WhyNoJail(err), When: time.Now().UTC()}, nil
	case ctx.Err() != nil:
		return verdict{}, fmt.Errorf("a sandbox did not start within %s", proofLimit)
	}
	v := verdict{When: time.Now().UTC()}
	if err != nil {
		v.Reason = noStart + host.WhyNoJail(fmt.Errorf("%s (%w)",
			console.Clip(complaint(out.String()), maxSaid), err))
		return v, nil
	}
	v.Usable, v.Reason = true, fmt.Sprintf("a sandbox started in %s",
		time.Since(began).Round(time.Millisecond))
	return v, nil
}

// complaint returns the line of a program's output that says why it failed: the last line, or the
// first line of a crash.
func complaint(out string) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return strings.TrimSpace(line)
		}
	}
	return console.LastLine(out)
}

// noStart prefixes the reason why nothing started.
const noStart = "a sandbox does not start: "
