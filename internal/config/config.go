// Package config reads the host's configuration: what the owner of a state directory
// says of the sandboxes that run with it, in config.toml there. docs/security.md
// describes it.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/kernel"
)

// File is the configuration's name in the state directory.
const File = "config.toml"

// maxFile bounds it, in bytes.
const maxFile = 1 << 20

// A Config is a host's configuration. The zero value is that of a host without one.
type Config struct {
	Network   Network   `toml:"network"`
	Limits    Limits    `toml:"limits"`
	Documents Documents `toml:"documents"`
	Images    Images    `toml:"images"`

	// The guest kernel in place of Debian's; TURN_KERNEL and TURN_KERNEL_MODULES win.
	Kernel        string `toml:"kernel"`         // absolute path of a vmlinux or a bzImage
	KernelModules string `toml:"kernel_modules"` // absolute path of its folder lib/modules/<release>; empty: built in
}

// GuestKernel is the guest kernel that c chooses.
func (c Config) GuestKernel() kernel.Choice {
	return kernel.Choice{Image: c.Kernel, Modules: c.KernelModules}
}

// Network is what the host says of every sandbox's network.
type Network struct {
	Default string   `toml:"default"` // of documents that say nothing: "on" (default) or "off"
	Allow   []string `toml:"allow"`
	Deny    []string `toml:"deny"`
	Locked  bool     `toml:"locked"` // documents and flags may narrow it, and not widen it
	DNS     string   `toml:"dns"`    // ADDRESS:PORT of the name server that is asked
}

// Documents is what every document may ask for, without a flag of its caller.
type Documents struct {
	Grant    []string `toml:"grant"`    // keys of front matter that are granted as they stand
	Sessions []string `toml:"sessions"` // patterns of names (path.Match), as "ci-*"
	Homes    []string `toml:"homes"`    // patterns of names
	Allow    []string `toml:"allow"`    // network rules that a document's own may lie within
}

// Images is what the host says of images of registries.
type Images struct {
	// Registries that a document may name although they are not public, and with the
	// user's credentials: HOST or HOST:PORT.
	Registries []string `toml:"registries"`
}

// Load reads the configuration in the state directory dir; there need not be one. An
// error is of kind Invalid.
func Load(dir string) (Config, error) {
	path := filepath.Join(dir, File)
	fail := func(err error, hint string) (Config, error) {
		return Config{}, turnstone.NewError("config.load", turnstone.KindInvalid, path, err).
			WithHint(hint)
	}
	// O_NONBLOCK: opening a pipe does not wait for a writer.
	// O_NOFOLLOW: where a link leads, others may be able to replace the file.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if errors.Is(err, syscall.ELOOP) {
		return fail(errors.New("it is a symbolic link"), "copy the file that it leads to here")
	}
	if err != nil {
		return fail(err, "make it a file that you can read")
	}
	defer func() { _ = f.Close() }()
	if err := private(f); err != nil {
		return fail(err, "run: chmod go-w "+path+", or write it again as the user that runs turn")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail(err, "make it a file that you can read")
	}
	if len(b) > maxFile {
		return fail(fmt.Errorf("it has more than %s", turnstone.Bytes(maxFile).Human()), "shorten it")
	}
	c, err := Parse(string(b))
	if err != nil {
		return fail(err, or(turnstone.HintOf(err), "docs/security.md says what it can hold"))
	}
	return c, nil
}

// private refuses a file that somebody else can write: it grants.
func private(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	owner := -1
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		owner = int(sys.Uid)
	}
	switch {
	case !st.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case owner != os.Geteuid() && owner != 0:
		return fmt.Errorf("it belongs to user %d", owner)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others can write it (mode %04o)", st.Mode().Perm())
	}
	return nil
}

func or[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}
