package kvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// Device is Linux's device of KVM.
const Device = "/dev/kvm"

// A Verdict says whether guests of a driver run under KVM here, and why not.
type Verdict struct {
	Usable bool   `json:"usable"`
	Reason string `json:"reason"`
	Proven bool   `json:"proven"` // a guest was started as a proof, now or in an earlier run
	// the host emulates its guests' kernels: Debian's does not start
	Emulated bool `json:"emulated,omitempty"`
	// the fault of the user's guest kernel, and no verdict on KVM
	Kernel bool `json:"kernel,omitempty"`
	Lasts  bool `json:"lasts,omitempty"` // a later attempt changes nothing
	// model of the virtual CPU, if the driver names a model
	CPU   string `json:"cpu,omitempty"`
	Why   string `json:"why,omitempty"` // why CPU is not the driver's first choice
	Known bool   `json:"-"`             // a proof with a machine changes nothing
	// the device exists, but the user of the guests may not open it
	Denied bool      `json:"-"`
	When   time.Time `json:"when"`

	cause   error // the error that ruled KVM out without a guest
	passing bool  // applies to this start only
}

// How long a guest may take to prove KVM. It starts in a second if KVM works. With an emulated
// kernel it took 6.4 seconds on an idle host.
const (
	limit         = 20 * time.Second
	limitEmulated = time.Minute
)

// failedLasts is how long a failed start is remembered if another attempt may succeed: a busy host
// also delays a guest.
const failedLasts = time.Hour

// The errors of verdicts.
var (
	// ErrKernel: KVM may work, but the user's guest kernel does not.
	ErrKernel = errors.New("the guest's kernel is at fault")
	// ErrNotStarted: a guest was started, now or in an earlier run, and did not get ready.
	ErrNotStarted = errors.New("a guest does not start under it")
)

// The errors that a driver's error wraps when KVM ends a machine.
var (
	// ErrTurnedAway: the device refuses a machine, or its next instruction.
	ErrTurnedAway = errors.New("KVM turned away")
	// ErrBroken: KVM cannot continue the guest, or the guest has reset its machine.
	ErrBroken = errors.New("KVM cannot run the guest")
)

// A Question is a driver's question about KVM.
type Question struct {
	Home *statedir.Dir
	// Name is the driver's name, and its file's name in Home's cache.
	Name string
	// On contains the verdict's dependencies beside the host's kernel and the guest's kernel.
	On string
	// Kernel is the kernel that guests boot. A user's kernel may start where other kernels do not;
	// the real guest then decides.
	Kernel substrate.GuestKernel
	// Init is the digest of the initramfs, which contains the kernel's modules; empty: unknown, and
	// then a remembered verdict on the kernel may be outdated.
	Init turnstone.Digest
	// May returns why the user of the guests may not open the device; nil: the user may.
	May func() error
	// Try is a quick test without a kernel: see Try. It may return ErrEmulated.
	Try func() error
	// Prove starts a guest that must be ready within limit. An error is unrelated to KVM. Nil: no
	// guest is started, and an unknown verdict stays unknown.
	Prove func(ctx context.Context, limit time.Duration) (Verdict, error)
}

// remembered is a verdict with its dependencies.
type remembered struct {
	Verdict
	Host string           `json:"host"`
	Init turnstone.Digest `json:"init,omitempty"` // for a verdict on the kernel
}

// Ask answers q: at once if the device cannot be opened or used, else from the remembered verdict,
// or by starting a guest.
func (q Question) Ask(ctx context.Context) Verdict {
	if err := q.May(); err != nil {
		return ruledOut(err)
	}
	if v, ok := q.recall(); ok {
		return v
	}
	err := q.Try()
	emulated := errors.Is(err, ErrEmulated)
	switch {
	case err != nil && !emulated:
		return ruledOut(err)
	case emulated && !q.Kernel.Own:
		// Not remembered: another check is faster than a file.
		return Verdict{Reason: err.Error(), Proven: true, Emulated: true, Known: true,
			When: time.Now().UTC(), cause: err}
	case q.Prove == nil:
		return Verdict{Reason: "not proven yet", Emulated: emulated}
	}
	within := limit
	if emulated {
		within = limitEmulated
	}
	v, err := q.Prove(ctx, within)
	if err != nil { // unrelated to KVM: check again next time
		return Verdict{Reason: "the check failed: " + err.Error(), Emulated: emulated}
	}
	v.Proven, v.Known, v.Emulated, v.When = true, true, emulated, time.Now().UTC()
	if !v.passing {
		q.remember(v)
	}
	return v
}

func ruledOut(err error) Verdict {
	return Verdict{Reason: err.Error(), Known: true, Denied: errors.Is(err, fs.ErrPermission),
		cause: err}
}

// path returns the file of the remembered verdict: one file for each kernel.
func (q Question) path() string {
	name := "kvm-" + q.Name
	if q.Kernel.Own {
		name += "-" + q.Kernel.Digest.Short()
	}
	return q.Home.Path("cache", name+".json")
}

// host digests the verdict's dependencies.
func (q Question) host() string {
	return fmt.Sprintf("%s|%s", q.On, q.Kernel.Digest)
}

func (q Question) recall() (Verdict, bool) {
	b, err := os.ReadFile(q.path())
	var known remembered
	if err != nil || json.Unmarshal(b, &known) != nil || known.Host != q.host() {
		return Verdict{}, false
	}
	if !known.Usable && !known.Lasts && time.Since(known.When).Abs() > failedLasts {
		return Verdict{}, false
	}
	known.Verdict.Known = !known.Kernel || known.Init == q.Init
	return known.Verdict, known.Verdict.Known || q.Init == "" && q.Prove == nil
}

// remember writes v to q's file. A verdict that is not remembered is found out again.
func (q Question) remember(v Verdict) {
	known := remembered{Verdict: v, Host: q.host()}
	if v.Kernel {
		known.Init = q.Init
	}
	b, _ := json.Marshal(known) // plain data always encodes
	if _, err := q.Home.MkdirAll("cache"); err == nil {
		_ = filestamp.WriteFile(q.path(), b, 0o600)
	}
}

// MayOpen returns an error if this process may not open device for reading and writing.
func MayOpen(device string) error {
	f, err := os.OpenFile(filepath.Clean(device), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Patience returns how long a guest may take to start under KVM. A start takes a second, and up to
// ten seconds of processor time if the host emulates kernels. Ordinary kernels print nothing
// meanwhile.
func Patience() console.Patience {
	return console.Patience{Idle: 15 * time.Second, Work: 30 * time.Second, Limit: 3 * time.Minute}
}

// Proving returns Patience for a guest that has limit to prove that KVM works.
func Proving(limit time.Duration) console.Patience {
	p := Patience()
	p.Work, p.Limit = min(p.Work, limit), 3*limit // a busy host gives the guest a third of its time
	return p
}

// Failed returns the verdict on a guest with this kernel that did not get ready because of err. An
// error that the user's kernel reports itself is the kernel's fault; an error of Turnstone's kernel
// is the host's fault.
func Failed(err error, kernel substrate.KernelKind) Verdict {
	var gaveUp *console.GaveUp
	var typed *turnstone.Error
	if errors.As(err, &typed) && typed.Err != nil { // a verdict does not name a machine
		err = typed.Err
	}
	if errors.As(err, &gaveUp) && kernel.Own {
		return Verdict{Reason: ErrKernel.Error() + ": " + gaveUp.Why, Kernel: true}
	}
	return Verdict{Reason: ErrNotStarted.Error() + ": " + err.Error(),
		Lasts: errors.Is(err, ErrBroken), passing: errors.Is(err, ErrTurnedAway)}
}

// Ran returns the verdict on a guest that was ready after took.
func Ran(took time.Duration) Verdict {
	return Verdict{Usable: true, Reason: fmt.Sprintf("a guest started in %s",
		took.Round(time.Millisecond))}
}

// Unavailable returns the error of a driver that v rules out for guests with this kernel. It wraps
// each of ErrKernel, ErrNotStarted, ErrEmulated and the device's error that applies.
func (v Verdict) Unavailable(op turnstone.Op, kernel substrate.KernelKind) error {
	return turnstone.NewError(op, turnstone.KindUnavailable, "KVM", ruling{v}).
		WithHint(v.Advice(kernel))
}

// Advice returns a hint if v rules KVM out for guests with this kernel. It blames the kernel only
// if a guest was started.
func (v Verdict) Advice(kernel substrate.KernelKind) string {
	if !v.Proven {
		kernel = substrate.KernelKind{}
	}
	return kernel.Advice()
}

// A ruling is a verdict as an error.
type ruling struct{ Verdict }

func (r ruling) Error() string { return r.Reason }

// Is supports errors.Is.
func (r ruling) Is(target error) bool {
	return target == ErrKernel && r.Kernel || target == ErrNotStarted && r.Proven
}

func (r ruling) Unwrap() error { return r.cause }
