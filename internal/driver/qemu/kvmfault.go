package qemu

import (
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// kvmFault matches QEMU's messages when KVM turns away: when QEMU opens KVM, and while a guest
// runs, after which QEMU hangs (accel/kvm/kvm-all.c).
var kvmFault = lazyregexp.New(
	`(Could not access KVM kernel module: |failed to initialize kvm: |kvm run failed |` +
		`KVM internal error\. |KVM: entry failed, |kvm_init_vcpu: )[^\r\n]{0,200}`)

// stuck matches the messages for a guest that KVM cannot continue, possibly because of its kernel.
var stuck = lazyregexp.New(`^(KVM internal error\. |KVM: entry failed, )`)

// A complaints is the end of QEMU's standard error. It calls fault once, with the line that says
// that KVM turned away.
type complaints struct {
	console.Tail
	fault func(line string)
	seen  bool
}

// Write implements io.Writer. It has one caller at a time, and does not fail.
func (c *complaints) Write(p []byte) (int, error) {
	_, _ = c.Tail.Write(p)
	if match := kvmFault.FindStringSubmatch(c.String()); match != nil && !c.seen {
		c.seen = true
		c.fault(console.Printable(match[0]))
	}
	return len(p), nil
}

// turnedAway records why KVM has turned the machine away. QEMU may print the reason before its
// process is known here.
func (m *machine) turnedAway(line string) {
	e := turnstone.Errorf("qemu.run", turnstone.KindDead, string(m.ID()),
		"%w: %s", kvm.ErrTurnedAway, line).WithHint("run `turn doctor`")
	if stuck.MatchString(line) {
		e.Err = fmt.Errorf("%w: %s", kvm.ErrBroken, line)
		if m.Starting() {
			e.Hint = m.Advice
		}
	}
	m.Blame(e)
	close(m.noKVM)
}

// endWithKVM ends the machine when KVM turns it away.
func (m *machine) endWithKVM() {
	select {
	case <-m.noKVM:
		_ = m.Kill()
	case <-m.Done():
	}
}
