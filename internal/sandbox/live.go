package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// suspendLimit bounds the time that a guest may take to suspend itself, of which its processes have
// ten seconds. It also bounds the time for its answer afterwards.
const suspendLimit = time.Minute

// Pause pauses the machine, with its processes and its memory. All connections to it end, including
// Client's, and there are none until Resume. Meanwhile the disk (Disk) is complete; upper is the
// name, according to the guest, of its folder with the sandbox's changes. A second Pause does
// nothing.
//
// A machine that cannot be paused resumes with a new Client, unless it has died.
func (s *Sandbox) Pause(ctx context.Context) (upper string, err error) {
	s.live.Lock()
	defer s.live.Unlock()
	if s.paused {
		return s.upper, nil
	}
	p, ok := s.machine.(substrate.Pauser)
	if !ok {
		return "", s.cannot("be paused")
	}
	if err := s.restricted(); err != nil {
		return "", err
	}
	if _, disk := s.machine.(substrate.Disker); !disk {
		if err := s.spoolExport(ctx); err != nil {
			return "", err
		}
		defer func() {
			if err != nil {
				s.dropExport()
			}
		}()
	}
	if err := s.suspend(ctx, true); err != nil {
		return "", err
	}
	if s.exported != nil {
		s.upper = UpperIsExport
	}
	if err := p.Pause(context.WithoutCancel(ctx)); err != nil {
		return "", s.resumeAfter(ctx, p, err)
	}
	s.paused = true
	return s.upper, nil
}

// resumeAfter resumes a machine whose guest is suspended after a failed pause. It returns why, the reason
// of the failure, and ends a machine that does not resume. The caller holds s.live.
func (s *Sandbox) resumeAfter(ctx context.Context, p substrate.Pauser, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendLimit)
	defer cancel()
	_ = p.Resume(ctx) // it may be paused nevertheless
	if err := s.renew(ctx, wire.SandboxRenewParams{}); err != nil {
		return s.lost(why)
	}
	return why
}

// Resume resumes a paused machine: with fresh entropy, the host's clock and a new Client. It does
// nothing to a running machine.
func (s *Sandbox) Resume(ctx context.Context) error {
	s.live.Lock()
	defer s.live.Unlock()
	if !s.paused {
		return nil
	}
	p, ok := s.machine.(substrate.Pauser)
	if !ok {
		return s.cannot("be paused")
	}
	if err := p.Resume(ctx); err != nil {
		return s.lost(err)
	}
	s.paused = false
	s.dropExport()
	return s.renew(context.WithoutCancel(ctx), wire.SandboxRenewParams{})
}

// Paused reports whether the machine is paused.
func (s *Sandbox) Paused() bool {
	s.live.Lock()
	defer s.live.Unlock()
	return s.paused
}

// Snapshot writes the machine's current state to the folder dir, which it creates; see
// substrate.Snapshotter. A paused machine stays paused. Otherwise all connections to it end, and it
// resumes with a new Client: its processes notice only the elapsed time.
func (s *Sandbox) Snapshot(ctx context.Context, dir string) error {
	s.live.Lock()
	defer s.live.Unlock()
	sn, ok := s.machine.(substrate.Snapshotter)
	if _, resumes := s.driver.(substrate.Resumer); !ok || !resumes {
		return s.cannot("be cloned as they run")
	}
	if err := s.restricted(); err != nil {
		return err
	}
	if s.paused {
		return sn.Snapshot(ctx, dir)
	}
	if err := s.suspend(ctx, false); err != nil {
		return err
	}
	err := sn.Snapshot(ctx, dir)
	if renewErr := s.renew(context.WithoutCancel(ctx), wire.SandboxRenewParams{}); renewErr != nil {
		_ = os.RemoveAll(dir)
		return errors.Join(err, renewErr)
	}
	return err
}

// Mounts reports whether Mount mounts images into the running machine.
func (s *Sandbox) Mounts() bool {
	_, ok := s.machine.(substrate.Mounter)
	return ok
}

// Mount mounts the image (EROFS) at path read-only at the folder dir of the guest; see substrate.Mounter.
func (s *Sandbox) Mount(ctx context.Context, path, dir string) error {
	m, ok := s.machine.(substrate.Mounter)
	if !ok {
		return s.cannot("get images while they run")
	}
	return s.CauseOf(m.Mount(ctx, path, dir))
}

// HasDisk reports whether the host can read the disk of the running machine.
func (s *Sandbox) HasDisk() bool {
	_, ok := s.machine.(substrate.Disker)
	return ok
}

// Disk returns the disk that takes the sandbox's writes, for reading only; the caller closes it.
// Its content is untrusted. If the host cannot read the machine's disk, Disk returns the agent's
// export of the last Pause, and fails before a Pause.
func (s *Sandbox) Disk() (*os.File, error) {
	s.live.Lock()
	exported := s.exported
	s.live.Unlock()
	if exported != nil {
		fd, err := unix.FcntlInt(exported.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, &os.SyscallError{Syscall: "fcntl", Err: err}
		}
		return os.NewFile(uintptr(fd), exported.Name()), nil
	}
	d, ok := s.machine.(substrate.Disker)
	if !ok {
		return nil, s.cannot("show its disk")
	}
	return d.Disk()
}

// restricted returns the reason why the machine must not be paused, if its driver knows of a fault.
func (s *Sandbox) restricted() error {
	if d, ok := s.driver.(substrate.Able); ok {
		return d.Abilities().Live
	}
	return nil
}

func (s *Sandbox) cannot(what string) error {
	return turnstone.Errorf("executor.live", turnstone.KindUnavailable,
		"substrate "+s.about.Substrate, "its sandboxes cannot %s", what)
}

// lost ends a machine in an intermediate state: neither side knows the state of the conversation.
func (s *Sandbox) lost(err error) error {
	err = s.CauseOf(err)
	_ = s.machine.Close()
	return turnstone.NewError("executor.live", turnstone.KindDead, "sandbox "+string(s.ID()),
		err).WithHint("create a new sandbox: this one did not resume, and was ended")
}

// suspend freezes the guest's processes and ends the link. The caller holds s.live. It does not
// stop halfway: ctx counts only before it begins.
func (s *Sandbox) suspend(ctx context.Context, sync bool) error {
	if err := ctx.Err(); err != nil {
		return turnstone.NewError("executor.live", turnstone.KindCanceled,
			"sandbox "+string(s.ID()), context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendLimit)
	defer cancel()
	marker := make([]byte, wire.MarkerSize)
	_, _ = rand.Read(marker) // documented never to fail
	if err := s.port.Expect(marker); err != nil {
		return err
	}
	params := wire.SandboxSuspendParams{Marker: marker, Sync: sync}
	res, err := s.Client().SandboxSuspend(ctx, &params)
	if err != nil {
		if ctx.Err() != nil || turnstone.KindOf(err) == turnstone.KindDead {
			return s.lost(err)
		}
		s.port.Forget() // it refused, and still runs
		return err
	}
	s.upper = res.Upper
	if err := s.port.End(ctx); err != nil {
		return s.lost(err)
	}
	return nil
}

// renew starts the next link and lets the guest resume.
func (s *Sandbox) renew(ctx context.Context, p wire.SandboxRenewParams) error {
	ctx, cancel := context.WithTimeout(ctx, suspendLimit)
	defer cancel()
	// The protocol cannot stop a guest that does not read; this does.
	defer context.AfterFunc(ctx, func() { _ = s.machine.Close() })()
	if err := s.dial(); err != nil {
		return s.lost(err)
	}
	p.Entropy, p.Time = make([]byte, 64), time.Now().Format(time.RFC3339Nano)
	_, _ = rand.Read(p.Entropy)
	res, err := s.Client().SandboxRenew(ctx, &p)
	if err == nil && !res.Reseeded {
		err = errors.New("the sandbox did not confirm fresh random numbers")
	}
	if err == nil {
		err = s.renewNetwork(ctx)
	}
	if err != nil {
		return s.lost(err)
	}
	return nil
}

// dial starts the next link and its first connection.
func (s *Sandbox) dial() error {
	link, err := s.port.Link()
	if err != nil {
		return err
	}
	stream, err := link.Open()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.client = link, wire.NewClient(stream)
	go s.watch(link)
	return nil
}

// watch ends the machine when its guest has broken the link, because the guest can then be neither
// asked nor trusted.
func (s *Sandbox) watch(link *wire.Link) {
	<-link.Done()
	if err := link.Err(); err != nil {
		s.mu.Lock()
		s.broken = turnstone.NewError("executor.channel", turnstone.KindIntegrity,
			string(s.ID())+": the sandbox broke its channel", err).
			WithHint("do not trust this sandbox: a program in it impersonates its agent")
		s.mu.Unlock()
		_ = s.machine.Close()
	}
}

// Keep writes the machine's current state to the folder dir, which it creates, in a form for long
// storage: as the difference from the template's snapshot. The result names the files, and the
// images that are the machine's layers. Otherwise Keep is like Snapshot.
func (s *Sandbox) Keep(ctx context.Context, dir string) (substrate.Packed, error) {
	k, ok := s.driver.(substrate.Keeper)
	if !ok {
		return substrate.Packed{}, s.cannot("be kept")
	}
	whole := dir + ".whole"
	defer func() { _ = os.RemoveAll(whole) }()
	if err := s.Snapshot(ctx, whole); err != nil {
		return substrate.Packed{}, err
	}
	return k.Pack(ctx, s.source, whole, dir)
}

// A BaseWriter writes the files of a base to the folder out, which it creates, and returns their
// names.
type BaseWriter func(ctx context.Context, out string) (files []string, err error)

// BaseWriter returns the writer of the base of packed, which Keep has returned. It is nil if packed
// needs no base.
func (s *Sandbox) BaseWriter(packed substrate.Packed) BaseWriter {
	p, ok := s.driver.(substrate.BasePacker)
	if !ok || packed.Base == "" {
		return nil
	}
	return func(ctx context.Context, out string) ([]string, error) {
		return p.PackBase(ctx, s.source, packed.Base, out)
	}
}

// Keeper returns the driver as a driver that keeps machines. The error is of kind Unavailable.
func (src *Source) Keeper() (substrate.Keeper, error) {
	k, ok := src.Driver.(substrate.Keeper)
	if !ok {
		return nil, turnstone.Errorf("executor.live", turnstone.KindUnavailable,
			"substrate "+src.Driver.Name(), "its sandboxes cannot be kept")
	}
	return k, nil
}
