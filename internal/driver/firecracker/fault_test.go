package firecracker

import (
	"errors"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
)

// TestTurnedAway checks the errors for Firecracker's own texts, from affected hosts.
func TestTurnedAway(t *testing.T) {
	const acl = " Make sure the user launching the firecracker process is configured on the " +
		"/dev/kvm file's ACL."
	for text, want := range map[string]error{
		"Start microvm error: Kvm error: Error creating KVM object: Permission denied (os " +
			"error 13)" + acl: syscall.EACCES,
		"Load snapshot error: Failed to build microVM: Kvm error: Error creating KVM object: No " +
			"such device (os error 19)" + acl: syscall.ENODEV,
		"Kvm error: Error creating KVM object: No such file or directory (os error 2)" +
			acl: syscall.ENOENT,
		"Failed to create VM: Device or resource busy (os error 16)": syscall.EBUSY,
		"Load snapshot error: CRC64 validation failed":               nil,
		"Cannot open the disk: No such device (os error 19)":         nil,
		"": nil,
	} {
		err := turnedAway(&apiError{400, text})
		if (err == nil) != (want == nil) || want != nil &&
			(!errors.Is(err, want) || turnstone.KindOf(err) != turnstone.KindUnavailable ||
				turnstone.HintOf(err) == "") {
			t.Errorf("%q: %v (%s)", text, err, turnstone.HintOf(err))
		}
	}
}
