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

// Device is where Linux has KVM.
const Device = "/dev/kvm"

// A Verdict says whether guests of a driver run under KVM here, and why not.
type Verdict struct {
	Usable   bool      `json:"usable"`
	Reason   string    `json:"reason"`
	Proven   bool      `json:"proven"`             // a guest was started to find out, here or in an earlier run
	Emulated bool      `json:"emulated,omitempty"` // the host emulates the kernels of its guests: Debian's does not start
	Kernel   bool      `json:"kernel,omitempty"`   // the fault is that of the guest's kernel, which is the user's: it says nothing of KVM
	Lasts    bool      `json:"lasts,omitempty"`    // asking again later changes nothing
	CPU      string    `json:"cpu,omitempty"`      // the model of the virtual CPU, where the driver names one
	Why      string    `json:"why,omitempty"`      // why CPU is not what the driver tries first
	Known    bool      `json:"-"`                  // asking again with a machine changes nothing
	Denied   bool      `json:"-"`                  // the device is there, and may not be opened by those who run the guests
	When     time.Time `json:"when"`

	cause   error // where it was ruled out without a guest
	passing bool  // it held for this one start
}

// How long a guest may take to prove KVM. It starts in a second where KVM works. Where a
// kernel is emulated it took 6.4 seconds on an idle host.
const (
	limit         = 20 * time.Second
	limitEmulated = time.Minute
)

// failedLasts is how long it is remembered that a guest did not start where another try may
// end otherwise: a busy host explains a guest that is late, too.
const failedLasts = time.Hour

// What the error of a verdict is.
var (
	// ErrKernel: KVM may work, and the guest's kernel, which is the user's, does not.
	ErrKernel = errors.New("the guest's kernel is at fault")
	// ErrNotStarted: a guest was started, here or in an earlier run, and did not get ready.
	ErrNotStarted = errors.New("a guest does not start under it")
)

// What a driver's error wraps that ends a machine because of KVM.
var (
	// ErrTurnedAway: the device refuses a machine, or its next instruction.
	ErrTurnedAway = errors.New("KVM turned away")
	// ErrBroken: KVM cannot go on with the guest, or the guest has reset its machine.
	ErrBroken = errors.New("KVM cannot run the guest")
)

// A Question is what a driver asks about KVM.
type Question struct {
	Home *statedir.Dir
	// Name is the driver's, and its file's in Home's cache.
	Name string
	// On is what the verdict depends on beside the host's kernel and the guest's.
	On string
	// Kernel is what guests boot. One of the user's may start where others do not: then
	// it is the real guest that decides.
	Kernel substrate.GuestKernel
	// Init is the digest of the initramfs, which has the kernel's modules in it; empty: it is
	// not known yet, and then a verdict on the kernel that is remembered may be an old one.
	Init turnstone.Digest
	// May says why those who run guests may not open the device; nil: they may.
	May func() error
	// Try is a quick test without a kernel: see Try. It may return ErrEmulated.
	Try func() error
	// Prove starts a guest that has to be ready within limit. An error has nothing to do
	// with KVM. Nil: nothing is started, and what is not known stays so.
	Prove func(ctx context.Context, limit time.Duration) (Verdict, error)
}

// remembered is a verdict with what it depends on.
type remembered struct {
	Verdict
	Host string           `json:"host"`
	Init turnstone.Digest `json:"init,omitempty"` // of a verdict on the kernel
}

// Ask answers q: at once where the device cannot be opened or used, from what is
// remembered, or by starting a guest.
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
		// Not remembered: it is found out again in less time than a file takes.
		return Verdict{Reason: err.Error(), Proven: true, Emulated: true, Known: true, When: time.Now().UTC(), cause: err}
	case q.Prove == nil:
		return Verdict{Reason: "not proven yet", Emulated: emulated}
	}
	within := limit
	if emulated {
		within = limitEmulated
	}
	v, err := q.Prove(ctx, within)
	if err != nil { // says nothing of KVM: ask again next time
		return Verdict{Reason: "finding out failed: " + err.Error(), Emulated: emulated}
	}
	v.Proven, v.Known, v.Emulated, v.When = true, true, emulated, time.Now().UTC()
	if !v.passing {
		q.remember(v)
	}
	return v
}

func ruledOut(err error) Verdict {
	return Verdict{Reason: err.Error(), Known: true, Denied: errors.Is(err, fs.ErrPermission), cause: err}
}

// path is where the verdict is remembered: one for each kernel.
func (q Question) path() string {
	name := "kvm-" + q.Name
	if q.Kernel.Own {
		name += "-" + q.Kernel.Digest.Short()
	}
	return q.Home.Path("cache", name+".json")
}

// host is what the verdict depends on.
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

// remember writes v down. A verdict that is not remembered is found again.
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

// MayOpen tells whether this process may open device for reading and writing.
func MayOpen(device string) error {
	f, err := os.OpenFile(filepath.Clean(device), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Patience is how long a guest may take to start under KVM: that takes a second, and up to
// ten of processor time where the host emulates kernels. Ordinary kernels print nothing meanwhile.
func Patience() console.Patience {
	return console.Patience{Idle: 15 * time.Second, Work: 30 * time.Second, Limit: 3 * time.Minute}
}

// Proving is Patience for a guest that has limit to prove that KVM works.
func Proving(limit time.Duration) console.Patience {
	p := Patience()
	p.Work, p.Limit = min(p.Work, limit), 3*limit // a busy host gives it a third of its time
	return p
}

// Failed returns the verdict on a guest with this kernel that did not get ready: err says
// why. What a kernel of the user's says itself is its own fault; where Turnstone's fails, it
// is the host's.
func Failed(err error, kernel substrate.KernelKind) Verdict {
	var gaveUp *console.GaveUp
	var typed *turnstone.Error
	if errors.As(err, &typed) && typed.Err != nil { // a machine's name says nothing here
		err = typed.Err
	}
	if errors.As(err, &gaveUp) && kernel.Own {
		return Verdict{Reason: ErrKernel.Error() + ": " + gaveUp.Why, Kernel: true}
	}
	return Verdict{Reason: ErrNotStarted.Error() + ": " + err.Error(), Lasts: errors.Is(err, ErrBroken), passing: errors.Is(err, ErrTurnedAway)}
}

// Ran returns the verdict on a guest that got ready after took.
func Ran(took time.Duration) Verdict {
	return Verdict{Usable: true, Reason: fmt.Sprintf("a guest started in %s", took.Round(time.Millisecond))}
}

// Unavailable returns the error of a driver that v rules out for guests with this kernel. It
// wraps those of ErrKernel, ErrNotStarted, ErrEmulated and what the device said that hold.
func (v Verdict) Unavailable(op turnstone.Op, kernel substrate.KernelKind) error {
	return turnstone.NewError(op, turnstone.KindUnavailable, "KVM", ruling{v}).
		WithHint(v.Advice(kernel))
}

// Advice is what helps where v rules KVM out for guests with this kernel: the kernel is to
// blame only where a guest was started.
func (v Verdict) Advice(kernel substrate.KernelKind) string {
	if !v.Proven {
		kernel = substrate.KernelKind{}
	}
	return kernel.Advice()
}

// A ruling is a verdict as an error.
type ruling struct{ Verdict }

func (r ruling) Error() string { return r.Reason }

// Is implements what errors.Is looks for.
func (r ruling) Is(target error) bool {
	return target == ErrKernel && r.Kernel || target == ErrNotStarted && r.Proven
}

func (r ruling) Unwrap() error { return r.cause }
