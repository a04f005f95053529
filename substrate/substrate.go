// Package substrate says what runs a sandbox. A substrate is one small interface;
// what only some can do (live fork, a deterministic machine) is an interface of
// its own, found by type assertion. Every substrate passes substratetest.
package substrate

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
)

// A Machine is everything that a sandbox starts from: the read-only inputs, all
// of them named by digest, and the shape.
type Machine struct {
	Kernel       string                 // path of an ELF vmlinux or a bzImage; see OwnKernel
	KernelDigest turnstone.Digest       // of the file at Kernel
	KernelIs     KernelKind             // whose Kernel it is
	Initramfs    string                 // path of the initramfs with the agent as /init; see OwnKernel
	InitDigest   turnstone.Digest       // of the file at Initramfs; covers the agent and its modules
	Agent        func() ([]byte, error) `json:"-"` // the agent's static program, for substrates without an initramfs
	AgentDigest  turnstone.Digest       // of what Agent returns
	Root         string                 // path of the template's read-only root image (EROFS)
	RootDigest   turnstone.Digest       // of the file at Root
	Shape        turnstone.Shape

	// Layers are the paths of read-only images (EROFS) that Restore puts into the
	// machine as disks with the serial numbers that LayerSerial names, the lowest
	// first; at most MaxLayers, each of exactly SlotSize bytes. A snapshot does not
	// depend on them, and Boot has none.
	Layers []string
	// Home is the path of a disk image for a home directory that outlives the
	// sandbox, of exactly SlotSize bytes; empty: none. It gets the sandbox's writes.
	Home string
}

// A KernelKind says whose a guest kernel is. The zero value is Turnstone's: Debian's.
type KernelKind struct {
	Own     bool   // the user's choice
	Test    bool   // made for tests: inside the guest nothing separates programs from the kernel
	Release string // that the image names, as "6.1.0-50-cloud-amd64"; empty: not known
	File    string // path of the image that the user named; empty: not known, or Turnstone's
	Modules string // path of its modules that the user named; empty: none
}

// A GuestKernel is the kernel that a driver's guests boot, as far as it is known before
// a machine is there. The zero value is Turnstone's.
type GuestKernel struct {
	KernelKind
	Digest turnstone.Digest // of the image; empty for Turnstone's
}

// TestKernel is in the isolation of machines with a kernel made for tests.
const TestKernel = "test kernel"

// Isolation is what a driver adds to how it isolates because of the kernel.
func (k KernelKind) Isolation() string {
	if k.Test {
		return ", " + TestKernel
	}
	return ""
}

// Advice is what helps when a machine does not start, and the kernel may be to blame.
func (k KernelKind) Advice() string {
	if !k.Own {
		return "run `turn doctor`"
	}
	return "run `" + k.Look() + "`, use another kernel, or Debian's: unset TURN_KERNEL, and take kernel out of config.toml"
}

// Look is the command that says what a kernel of the user's lacks.
func (k KernelKind) Look() string {
	if k.File == "" {
		return "turn doctor --kernel FILE"
	}
	look := "turn doctor --kernel " + quote(k.File)
	if k.Modules != "" {
		look += " --kernel-modules " + quote(k.Modules)
	}
	return look
}

// quote makes path one word of a shell's command line, and leaves it as it is where it is one.
func quote(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%=", r)
	}
	if strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// GuestKernel returns what m says of its kernel.
func (m Machine) GuestKernel() GuestKernel {
	k := GuestKernel{KernelKind: m.KernelIs}
	if k.Own {
		k.Digest = m.KernelDigest
	}
	return k
}

// The disks that a machine may be given beside its root and scratch disks. Each
// machine has a slot for each of them from its boot on, so the images need the
// slots' size; sparse files take up no room for it.
const (
	MaxLayers        = 6
	SlotSize   int64 = 64 << 30
	HomeSerial       = "home"
)

// LayerSerial is the serial number of the disk with layer i, from 0.
func LayerSerial(i int) string { return "layer" + strconv.Itoa(i) }

// A Substrate starts sandboxes. Its methods are safe for concurrent use, also
// from several processes that share one home.
type Substrate interface {
	// Name is the word that users know it by, as "qemu".
	Name() string
	// Isolation says how a sandbox is kept apart, as "microvm (TCG)"; it goes into receipts.
	Isolation() string
	// Boot starts m from its kernel. The agent is not configured yet.
	Boot(ctx context.Context, m Machine) (Sandbox, error)
	// Restore starts m from a snapshot of its booted agent, which it takes first
	// where there is none that matches and is whole. The agent is not configured yet.
	Restore(ctx context.Context, m Machine) (Sandbox, error)
}

// A Sandbox is one running machine. The caller must Close it.
type Sandbox interface {
	ID() turnstone.SandboxID
	// Agent is the byte stream to the agent. There is one, and it belongs to the caller.
	Agent() io.ReadWriteCloser
	// Scratch is the serial number of the disk that takes the sandbox's writes.
	Scratch() string
	// Done is closed when the machine has ended, by itself or by Close.
	Done() <-chan struct{}
	// Err says why the machine ended: nil before Done and after Close.
	Err() error
	// Close ends the machine at once and frees all it holds. It may be called
	// more than once, and from any goroutine.
	Close() error
}

// An OwnKernel is a Substrate that brings the kernel of its sandboxes: it needs
// neither Kernel nor Initramfs of a Machine, and starts Agent instead.
type OwnKernel interface {
	OwnKernel()
}

// A Networker is a Sandbox whose network card, when its shape has one, ends at the
// host. For others the agent carries the frames: see Sandbox.network of the wire.
type Networker interface {
	// Frames is the card's other end: Ethernet frames, each after its length in four
	// bytes, big-endian (QEMU's -netdev stream). There is one, and it belongs to the
	// caller. It ends with the machine. A machine whose shape has no network has none: that
	// is an error.
	Frames() (io.ReadWriteCloser, error)
}

// A Pauser can stop a sandbox's CPUs and let them go on.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// A Disker gives access to the disk that takes a sandbox's writes. What a host
// reads there is the guest's word, and complete only after State.freeze.
type Disker interface {
	// Disk returns a descriptor of its own of the disk's image (ext4), to be read
	// only. It outlives the sandbox; the caller closes it.
	Disk() (*os.File, error)
}
