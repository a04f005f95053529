package host

import (
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/sandboxes"
)

// Options are executor.Options, which documents the fields.
type Options struct {
	Dir, Within, Store, Database                              string
	Runsc, QEMU, Firecracker, Jailer                          string
	AgentFile                                                 string
	Kernel, KernelModules                                     string
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string
	Holder                                                    sandboxes.Holder
	Passphrase                                                func(key string) ([]byte, error)
	VaultToken                                                string
}

// Open returns the state directory that o names, and creates a missing directory. The error is of
// kind Invalid if another user can write to the directory, and of kind Unavailable if it cannot be
// created.
func (o Options) Open() (*statedir.Dir, error) { return statedir.Open(o.Dir) }

// Locate returns the state directory that o names, which may not exist. The error is of kind
// Invalid if its configuration cannot be read.
func (o Options) Locate() (*statedir.Dir, error) {
	dir, err := statedir.Locate(o.Dir)
	if err != nil {
		return nil, err
	}
	if _, err := config.Load(dir); err != nil {
		return nil, err
	}
	return &statedir.Dir{Root: dir}, nil
}

// sources returns the addresses from which packages are downloaded.
func (o Options) sources() template.Sources {
	return template.Sources{Debian: o.DebianMirror, DebianSecurity: o.DebianSecurityMirror,
		Pip: o.PipIndex, Npm: o.NpmRegistry}
}

// launcher returns the launcher of sandboxes.
func (o Options) launcher(h *statedir.Dir) *sandbox.Launcher {
	l := sandbox.New(h)
	l.AgentFile, l.Programs = o.AgentFile, o.programs()
	return l
}

// programs returns the paths of the programs that substrates run.
func (o Options) programs() driver.Programs {
	return driver.Programs{Runsc: o.Runsc, QEMU: o.QEMU, Firecracker: o.Firecracker,
		Jailer: o.Jailer}
}
