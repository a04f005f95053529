package qemu

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/substrate"
)

// A KernelReport describes a kernel, from the agent's report in a small machine.
type KernelReport struct {
	console.KernelReport
	Isolation string // isolation of the machine, such as "microvm (TCG)"
	Took      time.Duration
}

// How long a kernel may take to report. Kernels print continuously as they boot, so the limit on
// silence detects a stuck kernel; a busy host with TCG is slow, and has the limit of other starts.
const (
	checkSilence = 30 * time.Second
	checkLimit   = 5 * time.Minute
)

// checkMemory and checkDisk are enough for a machine that only reports.
const (
	checkMemory turnstone.Bytes = 256 << 20
	checkDisk                   = 1 << 20
)

// errSilent ends the wait for a kernel that prints nothing.
var errSilent = errors.New("it prints nothing on the serial console")

// CheckKernel boots m's kernel with m's initramfs, whose agent reports the kernel's features, and
// ignores the rest of m. It tries KVM if KVM may work, and TCG; if KVM is known to fail, TCG is
// tried first. Errors are *turnstone.Error, of kind Dead if the kernel reached no report with any
// of them.
func (s *Substrate) CheckKernel(ctx context.Context, m substrate.Machine) (*KernelReport, error) {
	return s.checkKernel(ctx, m, checkSilence, checkLimit)
}

func (s *Substrate) checkKernel(ctx context.Context, m substrate.Machine, silence,
	limit time.Duration) (*KernelReport, error) {
	order, failures := s.checkOrder(m.KernelIs.Test)
	if len(order) == 0 {
		return nil, turnstone.Errorf(checkOp, turnstone.KindUnavailable, "kernel",
			"%s", strings.Join(failures, "; "))
	}
	for _, a := range order {
		k := *s
		k.accel, k.kernel = a, m.GuestKernel()
		report, err := k.reportOf(ctx, m, silence, limit)
		var e *turnstone.Error
		switch {
		case err == nil:
			return report, nil
		case ctx.Err() != nil:
			return nil, s.wrap(ctx.Err())
		case turnstone.KindOf(err) != turnstone.KindDead || !errors.As(err, &e):
			return nil, s.wrap(err)
		}
		failures = append(failures, "under "+strings.ToUpper(string(a))+": "+e.Err.Error())
		var gaveUp *console.GaveUp
		if a == accelKVM && errors.As(err, &gaveUp) {
			break // the kernel's own reason; but some kernels panic under TCG only
		}
	}
	slices.SortStableFunc(failures,
		func(a, b string) int {
			return strings.Compare(a[:len("under KVM")],
				b[:len("under KVM")])
		})
	return nil, turnstone.Errorf(checkOp, turnstone.KindDead, "kernel",
		"%s", strings.Join(failures, "; ")).
		WithHint("build the kernel with CONFIG_SERIAL_8250_CONSOLE, CONFIG_PVH and " +
			"CONFIG_BLK_DEV_INITRD=y")
}

// checkOrder returns the accelerators for a kernel check in order, and the excluded accelerators as
// text. A test kernel runs under KVM only.
func (s *Substrate) checkOrder(test bool) (order []accel, ruledOut []string) {
	mayNot := s.mayOpen()
	if mayNot != nil {
		ruledOut = []string{"KVM was not tried (" + mayNot.Error() + ")"}
	}
	switch {
	case test && mayNot != nil:
		return nil, append(ruledOut, "a test kernel runs under KVM only")
	case test:
		return []accel{accelKVM}, nil
	case mayNot != nil:
		return []accel{accelTCG}, ruledOut
	case kvm.Try(kvmDevice) == nil:
		return []accel{accelKVM, accelTCG}, nil
	}
	return []accel{accelTCG, accelKVM}, nil
}

const checkOp = "qemu.checkKernel"

// checkArgs returns the kernel's command line for the report with this nonce. The kernel prints
// from its first instructions on, so that a stuck kernel differs from a slow kernel.
func checkArgs(a accel, nonce string) string {
	args := []string{"console=ttyS0", "earlyprintk=serial,ttyS0,115200", "loglevel=6", "panic=-1",
		"reboot=t", "rdinit=/init", "audit=0",
		"nowatchdog", "no_timer_check", "tsc=reliable", "random.trust_cpu=on", "cgroup_no_v1=all",
		console.CheckWord + nonce}
	if a == accelTCG {
		args = append(args, unhardened...)
	}
	return strings.Join(args, " ")
}

// reportOf runs a machine for the report; if QEMU rejects its virtual CPU, it runs another machine
// with a reduced CPU.
func (s *Substrate) reportOf(ctx context.Context, m substrate.Machine, silence,
	limit time.Duration) (*KernelReport, error) {
	k := *s
	for {
		report, said, err := k.reportOnce(ctx, m, silence, limit)
		next, _ := nextModel(k.engine().model(), said)
		if err == nil || next == "" {
			return report, err
		}
		k.cpu = next
	}
}

// reportOnce also returns the output of a QEMU that has ended by itself.
func (s *Substrate) reportOnce(ctx context.Context, m substrate.Machine, silence,
	limit time.Duration) (report *KernelReport, said string, err error) {
	ram, err := memory("ram")
	if err != nil {
		return nil, "", err
	}
	defer ram.Close()
	empty, err := memory("disk")
	if err != nil {
		return nil, "", err
	}
	defer empty.Close()
	if err := empty.Truncate(checkDisk); err != nil {
		return nil, "", err
	}
	m.Root = fmt.Sprintf("/proc/self/fd/%d", empty.Fd())
	m.Shape = turnstone.Shape{CPUs: 1, Memory: checkMemory, Disk: checkDisk}
	nonce := rand.Text()                                    // for this machine's report
	s.more = []string{"-append", checkArgs(s.accel, nonce)} // the last -append counts
	began := time.Now()
	vm, err := s.boot(m, ram, empty)
	if err != nil {
		return nil, "", err
	}
	defer vm.Close()
	is, err := vm.report(ctx, nonce, silence, limit)
	if err != nil {
		select {
		case <-vm.Done():
			said = vm.stderr.String()
		default:
		}
		return nil, said, err
	}
	return &KernelReport{KernelReport: is, Isolation: s.Isolation(), Took: time.Since(began)}, "",
		nil
}

// report waits for the agent's report with this nonce. Any other end is an error of kind Dead,
// except the host's errors.
func (m *machine) report(ctx context.Context, nonce string, silent,
	limit time.Duration) (r console.KernelReport, err error) {
	late := time.NewTimer(limit)
	defer late.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	var quiet silence
	load := func() (console.Load, error) { return host.Load(m.PID()) }
	for {
		ended := false
		var why error
		select {
		case <-look.C:
		case <-m.Console.Failed():
			ended = true
		case <-m.Done():
			ended, why = true, m.Err()
		case <-ctx.Done():
			return r, ctx.Err()
		case <-late.C:
			ended, why = true, fmt.Errorf("no report after %s", limit)
		}
		text := m.Console.String()
		r, err = console.Report(text, nonce)
		switch {
		case err == nil:
			return r, nil
		case ended:
			return r, m.noReport(why)
		case quiet.look(text, time.Now(), load) > silent:
			return r, m.noReport(fmt.Errorf("%w for %s", errSilent, silent))
		}
	}
}

// noReport returns why a kernel does not report, in its own words if it printed any.
func (m *machine) noReport(why error) error {
	e := turnstone.NewError(checkOp, turnstone.KindDead, "guest", why)
	last := m.Console.LastWords()
	kind := turnstone.KindOf(why)
	var typed *turnstone.Error
	if errors.As(why, &typed) { // an error of this machine, whose name means nothing here
		why = errors.New(console.Clip(typed.Err.Error(), maxSaid))
	}
	switch fault := m.Console.Fault(); {
	case fault != nil:
		e.Err = fault
	case kind != turnstone.KindInternal && kind != turnstone.KindDead:
		return typed
	case last == "":
		e.Err = fmt.Errorf("%w; the console is empty", why)
	default:
		e.Err = fmt.Errorf("%w; the console ends: %q", why, console.Clip(last, maxSaid))
	}
	return e
}

// maxSaid bounds a quoted output, in bytes.
const maxSaid = 200
