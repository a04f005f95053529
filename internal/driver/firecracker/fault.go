package firecracker

import (
	"errors"
	"strconv"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// kvmFault matches Firecracker's messages when KVM turns it away during the creation of a machine
// (src/vmm/src/vstate/{kvm,vm,vcpu}.rs in its repository).
var kvmFault = lazyregexp.New(
	`(?:Error creating KVM object|Failed to create VM|Failed to create vcpu|` +
		`Error creating vcpu)\b.{0,80}?\(os error (\d{1,3})\)`)

// turnedAway returns an error of kind Unavailable if refused says that KVM, which has worked
// before, turns this machine away; nil otherwise.
func turnedAway(refused *apiError) error {
	match := kvmFault.FindStringSubmatch(refused.Message)
	if match == nil {
		return nil
	}
	n, _ := strconv.Atoi(match[1]) // three digits
	no := syscall.Errno(n)
	e := turnstone.Errorf("firecracker.start", turnstone.KindUnavailable, "/dev/kvm",
		"KVM creates no machine: %w", no)
	switch {
	case errors.Is(no, syscall.EACCES), errors.Is(no, syscall.EPERM):
		e.Hint = "let this user open /dev/kvm (`turn doctor` says how), or use another substrate"
	case errors.Is(no, syscall.EBUSY):
		e.Hint = "end the other hypervisor that has the CPU's virtualization to itself, or use " +
			"another substrate"
	case errors.Is(no, syscall.ENODEV), errors.Is(no, syscall.ENOENT), errors.Is(no, syscall.ENXIO):
		e.Hint = "load the kernel's module for KVM again, or use another substrate"
	default:
		e.Hint = "run `turn doctor`"
	}
	return e
}
