package qemu

import (
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// kvmFault is what QEMU says when KVM turns away: as it is opened, and as a guest runs, where
// QEMU then stands still for ever (accel/kvm/kvm-all.c).
var kvmFault = lazyregexp.New(`(Could not access KVM kernel module: |failed to initialize kvm: |kvm run failed |KVM internal error\. |` +
	`KVM: entry failed, |kvm_init_vcpu: )[^\r\n]{0,200}`)

// stuck is what it says where KVM cannot go on with this guest, whose kernel may be the reason.
var stuck = lazyregexp.New(`^(KVM internal error\. |KVM: entry failed, )`)

// A complaints is the end of what QEMU has said on its standard error. fault is called once,
// with the line by which KVM turned away.
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

// turnedAway keeps why KVM has turned the machine away. QEMU may say so before its process is
// known here.
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
