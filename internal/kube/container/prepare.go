package container

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

// The time between two attempts to read what a container needs.
const minInputs, maxInputs = 5 * time.Second, time.Minute

// inputs reads what the container needs of the cluster, and puts it into the sandbox.
func (s *session) inputs(ctx context.Context) (in agents.Inputs, err error) {
	if s.Main.Inputs == nil {
		return in, nil
	}
	for wait := minInputs; ; wait = min(2*wait, maxInputs) {
		bounded, cancel := context.WithTimeout(ctx, callTime)
		in, err = s.Main.Inputs(bounded)
		cancel()
		if err == nil {
			break
		}
		var no agents.Unsupported
		if errors.As(err, &no) {
			return in, turnstone.NewError("kube.inputs", turnstone.KindInvalid, "the container", err)
		}
		s.state(agents.Process{Reason: "CreateContainerConfigError", Message: cut(text(err))})
		if !sleep(ctx, s.w.Done(), wait) {
			return in, dead(s.w)
		}
	}
	bounded, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if len(in.Env) > 0 {
		if err := s.w.SandboxAddSecrets(bounded, &wire.SandboxAddSecretsParams{Secrets: in.Env}); err != nil {
			return in, err
		}
	}
	for _, f := range in.Files {
		if _, err := s.w.FileSystemWrite(bounded, &wire.FileSystemWriteParams{Path: f.Path, Data: f.Content,
			Mode: int64(f.Mode), Parents: true}); err != nil {
			return in, err
		}
	}
	return in, nil
}

// prepare makes the directories that stand for volumes.
func (s *session) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	for _, dir := range s.Main.Dirs {
		if err := directory(ctx, s.w, dir, s.Main.User); err != nil {
			return err
		}
	}
	return nil
}

// directory makes a directory that stands for a volume. It belongs to the process's user, and to all users if
// the object names none: that of the image is not known here.
func directory(ctx context.Context, w *wire.Client, dir, user string) error {
	p := &wire.FileSystemMkdirParams{Path: dir, Parents: true}
	if user == "" {
		p.Mode = 0o777
	}
	if err := w.FileSystemMkdir(ctx, p); err != nil {
		return err
	}
	if user == "" {
		return nil
	}
	_, err := w.Start(ctx, wire.ProcessStartParams{ProcessID: "own" + strings.ToLower(rand.Text()),
		Argv: []string{"chown", user, "--", dir}}, wire.Stdio{})
	return err
}
