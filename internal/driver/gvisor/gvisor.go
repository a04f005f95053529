// Package gvisor is the substrate that runs sandboxes under gVisor's kernel, a kernel in user space
// (https://gvisor.dev), with its program runsc. It needs neither a virtual machine nor root, and
// runs code at native speed. A sandbox starts from a checkpoint of its waiting agent.
//
// It needs the runsc of this repository's module runsc, which adds features for the images of
// templates and layers that gVisor's own runsc lacks.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Substrate = (*Substrate)(nil)
	_ substrate.OwnKernel = (*Substrate)(nil)
	_ substrate.Keeper    = (*Substrate)(nil)

	_ substrate.Deterministic = (*Substrate)(nil)
)

// Substrate starts sandboxes of gVisor. It is safe for concurrent use, also from several processes
// with one state directory.
type Substrate struct {
	home     *statedir.Dir
	binary   string
	program  host.Program
	hostCPU  turnstone.Digest
	kernel   string // release of the host's kernel
	progress func(string)
}

// Options are the parameters of New.
type Options struct {
	Binary   string       // runsc; empty: beside the running program, then PATH
	Progress func(string) // called before slow operations; may be nil
}

const (
	binaryName = "runsc"
	// edition is part of the version of a runsc that was built with Turnstone's additions, in the
	// edition that this package needs. See VERSION in the Makefile.
	edition = "+turnstone.10"
)

// New finds runsc. If there is none, or only a runsc without Turnstone's additions, the error is of
// kind Unavailable and has a hint.
func New(ctx context.Context, h *statedir.Dir, opts Options) (*Substrate, error) {
	s := &Substrate{home: h, progress: opts.Progress}
	if s.progress == nil {
		s.progress = func(string) {}
	}
	if runtime.GOARCH != "amd64" {
		return nil, turnstone.Errorf("gvisor.new", turnstone.KindUnavailable, runtime.GOARCH,
			"the gvisor substrate runs on x86-64 hosts only").WithHint("use another substrate")
	}
	var err error
	if s.binary, err = findRunsc(opts.Binary); err != nil {
		return nil, turnstone.NewError("gvisor.new", turnstone.KindUnavailable, binaryName, err).
			WithHint(buildHint)
	}
	if s.program, err = s.readProgram(ctx); err != nil {
		return nil, err
	}
	if !strings.Contains(s.program.Version, edition) {
		return nil, turnstone.Errorf("gvisor.new", turnstone.KindUnavailable, s.binary,
			"it says %q, and is not a runsc that was built for turn", s.program.Version).
			WithHint(buildHint)
	}
	if s.hostCPU, err = host.CPU(); err != nil {
		return nil, err
	}
	s.kernel = host.Kernel()
	return s, nil
}

const buildHint = "`make build` makes bin/runsc; put it beside turn, in PATH, " +
	"or name it in TURN_RUNSC"

// findRunsc returns the path of runsc, without symbolic links.
func findRunsc(named string) (string, error) {
	if named == "" {
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(self), binaryName)
			if unix.Access(beside, unix.X_OK) == nil {
				named = beside
			}
		}
	}
	if named == "" {
		path, err := exec.LookPath(binaryName)
		if err != nil {
			return "", errors.New("it is neither beside turn nor in PATH")
		}
		named = path
	}
	path, err := filepath.Abs(named)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", named, err)
	}
	return path, nil
}

// Name implements substrate.Substrate.
func (s *Substrate) Name() string { return "gvisor" }

// Isolation implements substrate.Substrate.
func (s *Substrate) Isolation() string { return "gvisor (systrap)" }

// OwnKernel implements substrate.OwnKernel.
func (s *Substrate) OwnKernel() {}

// Tier implements substrate.Deterministic: the agent tells its kernel when it is configured.
func (s *Substrate) Tier() turnstone.Tier { return turnstone.TierSeeded }

// Version returns runsc's version text.
func (s *Substrate) Version() string { return s.program.Version }

// ProgramDigest returns the digest of the program that runs machines.
func (s *Substrate) ProgramDigest() turnstone.Digest { return s.program.Binary.Digest }

// Binary returns the path of runsc.
func (s *Substrate) Binary() string { return s.binary }

func (s *Substrate) readProgram(ctx context.Context) (host.Program, error) {
	p, err := host.Versioned(ctx, s.home, "runsc.json", s.binary)
	if err != nil {
		return p, turnstone.NewError("gvisor.new", turnstone.KindUnavailable, s.binary, err).
			WithHint(buildHint)
	}
	return p, nil
}

// wrap adds a kind and a hint to an error.
func (s *Substrate) wrap(op turnstone.Op, err error) error {
	return kit.Fault(op, "gvisor", s.home.Root, err, advice)
}
