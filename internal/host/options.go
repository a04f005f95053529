package host

import (
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/sandboxes"
)

// Options are executor.Options, which has their documentation.
type Options struct {
	Dir, Store                                                string
	Runsc, QEMU, Firecracker, Jailer                          string
	AgentFile                                                 string
	Kernel, KernelModules                                     string
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string
	Holder                                                    sandboxes.Holder
}

// Open returns the state directory that o names, which it makes where there is none. An error is of
// kind Invalid where another user could write to it, and of kind Unavailable where it cannot be
// made.
func (o Options) Open() (*statedir.Dir, error) { return statedir.Open(o.Dir) }

// Locate returns the state directory that o names, which need not exist. An error is of kind
// Invalid where its configuration cannot be read.
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

// sources are the addresses that packages come from.
func (o Options) sources() template.Sources {
	return template.Sources{Debian: o.DebianMirror, DebianSecurity: o.DebianSecurityMirror,
		Pip: o.PipIndex, Npm: o.NpmRegistry}
}

func (o Options) mirrors() debian.Mirrors {
	return debian.Mirrors{Main: o.DebianMirror, Security: o.DebianSecurityMirror}
}

// launcher starts sandboxes.
func (o Options) launcher(h *statedir.Dir) *sandbox.Launcher {
	l := sandbox.New(h)
	l.AgentFile, l.Programs = o.AgentFile, o.programs()
	return l
}

// programs are the paths of the programs that substrates run.
func (o Options) programs() driver.Programs {
	return driver.Programs{Runsc: o.Runsc, QEMU: o.QEMU, Firecracker: o.Firecracker,
		Jailer: o.Jailer}
}
