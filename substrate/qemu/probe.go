package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/stamp"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/kvm"
)

// probeLimit is how long a guest may take to prove KVM. With KVM that works it
// starts in well under a second.
const probeLimit = 10 * time.Second

// A Verdict says whether guests run under KVM here, and why not.
type Verdict struct {
	Usable bool      `json:"usable"`
	Reason string    `json:"reason"`
	Proven bool      `json:"proven"` // a guest was started to find out, here or in an earlier run
	Known  bool      `json:"-"`      // asking again with a machine changes nothing
	Denied bool      `json:"-"`      // the device is there, and may not be opened by those who run QEMU
	When   time.Time `json:"when"`
}

// mayOpen tells whether a QEMU that runs as who, or as this user when that is nil,
// may open the device for reading and writing.
func mayOpen(device string, who *syscall.Credential) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if who == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	byGroup := st.Mode&0o060 == 0o060 && slices.Contains(who.Groups, st.Gid)
	if st.Mode&0o006 == 0o006 || byGroup {
		return nil
	}
	return &fs.PathError{Op: "open", Path: device, Err: fmt.Errorf("it is root's alone, and root's QEMU runs as nobody: %w", fs.ErrPermission)}
}

// remembered is a verdict with what it depends on.
type remembered struct {
	Verdict
	Host string `json:"host"`
}

// KVM tells whether KVM runs a guest. A device that cannot be opened is answered
// at once. Else a guest must really start under it: that is tried once, within
// ten seconds, and remembered until QEMU, the host's kernel or its CPU change.
func (s *Substrate) KVM(ctx context.Context, probe *substrate.Machine) Verdict {
	if err := mayOpen(kvmDevice, unprivileged()); err != nil {
		return Verdict{Reason: err.Error(), Known: true, Denied: errors.Is(err, fs.ErrPermission)}
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	host := fmt.Sprintf("%s|%s|%s", s.version, unix.ByteSliceToString(u.Release[:]), s.hostCPU)
	path := s.home.Path("cache", "kvm.json")
	var known remembered
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &known) == nil && known.Host == host {
		known.Known = true
		return known.Verdict
	}
	if err := kvm.Try(kvmDevice); errors.Is(err, kvm.ErrEmulated) {
		// Not remembered: it is found out again in less time than a file takes.
		return Verdict{Reason: err.Error(), Proven: true, Known: true, When: time.Now().UTC()}
	}
	if probe == nil {
		return Verdict{Reason: "not proven yet"}
	}
	s.progress("finding out whether KVM runs a guest (once)")
	v, err := s.prove(ctx, *probe)
	if err != nil {
		return Verdict{Reason: err.Error()} // says nothing of KVM: ask again next time
	}
	b, _ := json.Marshal(remembered{v, host})
	_ = stamp.WriteFile(path, b, 0o600) // a verdict that is not remembered is found again
	return v
}

func (s *Substrate) prove(ctx context.Context, m substrate.Machine) (Verdict, error) {
	k := *s
	k.accel = accelKVM
	began := time.Now()
	vm, err := k.bootFresh(ctx, m)
	if err != nil {
		return Verdict{}, err
	}
	defer func() { _ = vm.Close() }()
	v := Verdict{Proven: true, Known: true, When: time.Now().UTC()}
	err = vm.wait(ctx, vm.ready, probeLimit)
	switch {
	case ctx.Err() != nil:
		return Verdict{}, ctx.Err()
	case err != nil:
		v.Reason = "a guest does not start under it: " + err.Error()
	default:
		v.Usable = true
		v.Reason = fmt.Sprintf("a guest started in %s", time.Since(began).Round(time.Millisecond))
	}
	return v, nil
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || turnstone.KindOf(err) == turnstone.Exhausted
}
