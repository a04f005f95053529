package machine

import (
	"encoding/binary"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The option of prctl(2) that makes a sandbox of Turnstone's runsc deterministic, and the size of its
// seed: see runsc/README.md.
const (
	prctlDeterministic = 0x5475726e
	seedSize           = 32
)

// beginDeterministic makes gVisor's kernel deterministic: all processes but this one get their
// random numbers from the seed, the start of entropy, and see a virtual clock that starts at clock.
// The kernel accepts this once, and only from the machine's first process.
func beginDeterministic(entropy []byte, clock time.Time) error {
	arg := binary.NativeEndian.AppendUint64(append([]byte(nil), entropy[:seedSize]...),
		uint64(clock.UnixNano()))
	err := unix.Prctl(prctlDeterministic, uintptr(unsafe.Pointer(&arg[0])), 0, 0, 0)
	runtime.KeepAlive(arg)
	return os.NewSyscallError("prctl", err)
}
