// Package substrate defines what runs a sandbox. A substrate implements a small interface; optional
// abilities (live fork, a deterministic machine) are separate interfaces, found by type assertion.
// Every substrate passes substratetest.
package substrate

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
)

// A Machine is the input of a sandbox's start: read-only files, all identified by digest, and the
// shape.
type Machine struct {
	Kernel       string           // path of an ELF vmlinux or a bzImage; see OwnKernel
	KernelDigest turnstone.Digest // digest of the file at Kernel
	KernelIs     KernelKind       // the kind of Kernel
	Initramfs    string           // path of the initramfs with the agent as /init; see OwnKernel
	// digest of the file at Initramfs; covers the agent and its modules
	InitDigest turnstone.Digest
	// the agent's static program, for substrates without an initramfs
	Agent       func() ([]byte, error) `json:"-"`
	AgentDigest turnstone.Digest       // digest of Agent's result
	Root        string                 // path of the template's read-only root image (EROFS)
	RootDigest  turnstone.Digest       // digest of the file at Root
	Shape       turnstone.Shape
	// Determinism makes the machine deterministic, on a Deterministic substrate; nil: it is not.
	Determinism *Determinism `json:",omitempty"`

	// Layers are the paths of read-only images (EROFS), lowest first, that Restore adds to the
	// machine as disks with the serial numbers of LayerSerial; at most MaxLayers, each of exactly
	// SlotSize bytes. A snapshot does not depend on them, and Boot has none.
	Layers []string
	// Home is the path of a disk image for a home directory that outlives the sandbox, of exactly
	// SlotSize bytes; empty: none. The sandbox writes to it.
	Home string
}

// A KernelKind describes the origin of a guest kernel. The zero value is Turnstone's: Debian's.
type KernelKind struct {
	Own     bool   // the user's choice
	Test    bool   // a test kernel: the guest does not separate programs from the kernel
	Release string // the release in the image, such as "6.1.0-50-cloud-amd64"; empty: unknown
	File    string // path of the image that the user named; empty: unknown, or Turnstone's
	Modules string // path of its modules that the user named; empty: none
}

// A GuestKernel is the kernel that a driver's guests boot, as far as it is known before a machine
// exists. The zero value is Turnstone's.
type GuestKernel struct {
	KernelKind
	Digest turnstone.Digest // digest of the image; empty for Turnstone's
}

// TestKernel is part of the isolation of machines with a test kernel.
const TestKernel = "test kernel"

// Isolation returns the kernel's part of a driver's isolation.
func (k KernelKind) Isolation() string {
	if k.Test {
		return ", " + TestKernel
	}
	return ""
}

// Advice returns a hint for a machine that does not start, possibly because of the kernel.
func (k KernelKind) Advice() string {
	if !k.Own {
		return "run `turn doctor`"
	}
	return "run `" + k.Look() +
		"`, use another kernel, or Debian's: unset TURN_KERNEL, and remove kernel from config.toml"
}

// Look returns the command that checks a user's kernel.
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

// quote quotes path as a word of a shell's command line if necessary.
func quote(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("/._-+,:@%=", r)
	}
	if strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// GuestKernel returns m's kernel.
func (m Machine) GuestKernel() GuestKernel {
	k := GuestKernel{KernelKind: m.KernelIs}
	if k.Own {
		k.Digest = m.KernelDigest
	}
	return k
}

// The additional disks of a machine beside its root and scratch disks. Each machine has a slot for
// each of them from its boot on, so the images must have the slots' size; sparse files use no space
// for it.
const (
	MaxLayers        = 6
	SlotSize   int64 = 64 << 30
	HomeSerial       = "home"
)

// LayerSerial returns the serial number of the disk with layer i, from 0.
func LayerSerial(i int) string { return "layer" + strconv.Itoa(i) }

// A Substrate starts sandboxes. Its methods are safe for concurrent use, also from several
// processes that share a state directory.
type Substrate interface {
	// Name returns the user's name of the substrate, such as "qemu".
	Name() string
	// Isolation describes how a sandbox is isolated, such as "microvm (TCG)"; it is part of
	// receipts.
	Isolation() string
	// Boot starts m from its kernel. The agent is not configured yet.
	Boot(ctx context.Context, m Machine) (Sandbox, error)
	// Restore starts m from a snapshot of its booted agent. If no matching, intact snapshot exists,
	// Restore takes it first. The agent is not configured yet.
	Restore(ctx context.Context, m Machine) (Sandbox, error)
}

// A Sandbox is a running machine. The caller must Close it.
type Sandbox interface {
	ID() turnstone.SandboxID
	// Agent returns the byte stream to the agent. There is only one stream, and the caller owns it.
	Agent() io.ReadWriteCloser
	// Scratch returns the serial number of the disk that stores the sandbox's writes.
	Scratch() string
	// Done returns a channel that is closed when the machine has ended, by itself or by Close.
	Done() <-chan struct{}
	// Err returns why the machine ended: nil before Done and after Close.
	Err() error
	// Close ends the machine at once and frees its resources. It may be called more than once, and
	// from any goroutine.
	Close() error
}

// An OwnKernel is a Substrate with its own guest kernel: it ignores Kernel and Initramfs of a
// Machine, and starts Agent instead.
type OwnKernel interface {
	OwnKernel()
}

// A Networker is a Sandbox whose network card, if its shape has one, ends at the host. For other
// sandboxes the agent carries the frames: see Sandbox.network of the wire.
type Networker interface {
	// Frames returns the card's other end: Ethernet frames, each preceded by its length in four
	// bytes, big-endian (QEMU's -netdev stream). There is only one other end, and the caller owns
	// it. It ends with the machine. A machine whose shape has no network returns an error.
	Frames() (io.ReadWriteCloser, error)
}

// A Pauser can stop and resume a sandbox's CPUs.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// A Disker provides access to the disk that stores a sandbox's writes. The disk's content is
// untrusted, and complete only after State.freeze.
type Disker interface {
	// Disk returns a new descriptor of the disk's image (ext4), for reading only. It outlives the
	// sandbox; the caller closes it.
	Disk() (*os.File, error)
}

// A Mounter is a Sandbox into which the host can mount images while it runs.
type Mounter interface {
	// Mount mounts the image (EROFS) in the host's file at path read-only at the folder dir, which exists below the
	// root of the agent's processes. Nobody may change the file before the sandbox has ended. A sandbox with such a
	// mount has no snapshots.
	Mount(ctx context.Context, path, dir string) error
}
