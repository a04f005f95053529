package executor

import (
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/sandboxes"
)

// Options say what an Executor works with. The zero value works on a host that has runsc,
// or another program that runs sandboxes, beside the running program or in PATH.
type Options struct {
	// Dir is the state directory, which is made where it does not exist.
	// Default: $XDG_DATA_HOME/turnstone, else ~/.local/share/turnstone.
	Dir string
	// Store is where the objects of turns are kept: empty for Dir, or s3://BUCKET/PREFIX. The
	// credentials of a bucket come from the variables AWS_* of the environment.
	Store string

	// Paths of programs. Default: runsc beside the running program, then in PATH; QEMU's
	// qemu-system-x86_64 in PATH and in the system's directories; firecracker in PATH; jailer,
	// which only root uses, beside firecracker, then in PATH.
	Runsc, QEMU, Firecracker, Jailer string
	// AgentFile is the path of the program turn-agent, which runs inside of sandboxes.
	// Default: the agent that the build has embedded. "make build" embeds the agent; a module
	// from a module proxy has none.
	AgentFile string
	// Kernel is the path of the kernel that microVMs boot, a vmlinux or bzImage, and
	// KernelModules its folder lib/modules/VERSION. Default: those of the state directory's
	// config.toml, else Debian's kernel, which the first microVM downloads.
	Kernel, KernelModules string

	// Addresses that builds of templates take packages from. Default: Debian's archive, its
	// security archive, PyPI, and npm's registry.
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string

	// Holder is the command that keeps a sandbox which outlives this process. It is "turn
	// sandbox hold": the store adds arguments. It serves "lifetime: session", Resume, and
	// ForkLive; everything else works without a Holder. Default: turn beside the running
	// program, then in PATH, when its version is that of this module.
	Holder sandboxes.Holder
}

// Environ returns o as the variables that the command turn reads, for a holder. The state
// directory is not among them: it is an argument.
func (o Options) Environ() []string { return engine.Options(o).Environ() }
