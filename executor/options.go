package executor

import "turnstone.dev/turnstone/sandboxes"

// Options are the settings of an Executor. The zero value works on a host that has runsc, or
// another program that runs sandboxes, beside the running program or in PATH.
type Options struct {
	// Dir is the state directory. Open creates a missing directory. Default:
	// $XDG_DATA_HOME/turnstone, or else ~/.local/share/turnstone.
	Dir string
	// Within is a directory that contains Dir, such as a server's state directory with those of its
	// tenants. Receipts have no path of either. Empty: none.
	Within string
	// Store is the location of the objects of turns: empty for Dir, or s3://BUCKET/PREFIX. The
	// credentials of a bucket come from the variables AWS_* of the environment.
	Store string
	// Database is the location of sessions: empty for Dir, or a PostgreSQL database that several machines
	// use, as postgres://USER@HOST:PORT/NAME, without a password: PGPASSFILE names the file that has it.
	// It needs a Store in a bucket.
	Database string

	// Paths of programs. Default: runsc beside the running program, then in PATH; QEMU's
	// qemu-system-x86_64 in PATH and in the system's directories; firecracker in PATH; jailer,
	// which only root uses, beside firecracker, then in PATH.
	Runsc, QEMU, Firecracker, Jailer string
	// AgentFile is the path of the program turn-agent, which runs inside sandboxes. Default: the
	// embedded agent. "make build" embeds the agent; a module from a module proxy has none.
	AgentFile string
	// Kernel is the path of the kernel that microVMs boot, a vmlinux or bzImage, and KernelModules
	// is the folder with its modules, lib/modules/VERSION. Default: those of the state directory's
	// config.toml, or else Debian's kernel, which the first microVM downloads.
	Kernel, KernelModules string

	// Addresses from which builds of templates download packages. Default: Debian's archive, its
	// security archive, PyPI, and npm's registry.
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string

	// Holder is the command that keeps a sandbox which outlives this process. The command is "turn
	// sandbox hold", to which the store adds arguments. "lifetime: session", Resume and ForkLive
	// require a Holder. Default: turn beside the running program, then in PATH, if its version is
	// that of this module.
	Holder sandboxes.Holder

	// Passphrase returns the passphrase of the key in a file. It is called before a turn begins
	// whose caller's key has one. Default: such a key is an error.
	Passphrase func(key string) ([]byte, error)

	// VaultToken is shown to Vault, which wraps the keys of sealed sessions, if the configuration
	// names no file with a token.
	VaultToken string
}
