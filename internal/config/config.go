// Package config reads the host's configuration: the rules of a state directory's owner for its
// sandboxes, in config.toml there. docs/security.md describes the file.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/keyring"
)

// File is the configuration's name in the state directory.
const File = "config.toml"

// maxFile bounds the size of the file in bytes.
const maxFile = 1 << 20

// A Config is a host's configuration. The zero value is the configuration of a host without the
// file.
type Config struct {
	Network   Network   `toml:"network"`
	Limits    Limits    `toml:"limits"`
	Documents Documents `toml:"documents"`
	Images    Images    `toml:"images"`

	// How the keys of domains are wrapped: docs/keys.md.
	Keys  keyring.Settings      `toml:"keys"`
	Vault keyring.VaultSettings `toml:"vault"`

	// Host is "auto" if commands use the server of this machine while it runs, or "local" (default).
	Host string `toml:"host"`

	// The guest kernel that replaces Debian's; TURN_KERNEL and TURN_KERNEL_MODULES take precedence.
	Kernel string `toml:"kernel"` // absolute path of a vmlinux or a bzImage
	// absolute path of the kernel's folder lib/modules/<release>; empty: built in
	KernelModules string `toml:"kernel_modules"`
}

// GuestKernel returns the guest kernel that c selects.
func (c Config) GuestKernel() kernel.Choice {
	return kernel.Choice{Image: c.Kernel, Modules: c.KernelModules}
}

// Network is the host's policy for the network of every sandbox.
type Network struct {
	Default string   `toml:"default"` // for documents without network: "on" (default) or "off"
	Allow   []string `toml:"allow"`
	Deny    []string `toml:"deny"`
	Locked  bool     `toml:"locked"` // documents and flags may narrow the network but not widen it
	DNS     string   `toml:"dns"`    // ADDRESS:PORT of the name server
}

// Documents is what every document may request without a flag of its caller.
type Documents struct {
	Grant    []string `toml:"grant"`    // front matter keys that are always granted
	Sessions []string `toml:"sessions"` // name patterns (path.Match), such as "ci-*"
	Homes    []string `toml:"homes"`    // name patterns
	Allow    []string `toml:"allow"`    // network rules that bound a document's own rules
}

// Images is the host's policy for images of registries.
type Images struct {
	// Registries that a document may use although they are not public, with the user's credentials:
	// HOST or HOST:PORT.
	Registries []string `toml:"registries"`
}

// Load reads the configuration in the state directory dir. A missing file is not an error. Errors
// are of kind Invalid.
func Load(dir string) (Config, error) {
	path := filepath.Join(dir, File)
	fail := func(err error, hint string) (Config, error) {
		return Config{}, turnstone.NewError("config.load", turnstone.KindInvalid, path, err).
			WithHint(hint)
	}
	// O_NONBLOCK: opening a pipe does not wait for a writer. O_NOFOLLOW: other users may be able to
	// replace the file at a link's target.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if errors.Is(err, syscall.ELOOP) {
		return fail(errors.New("it is a symbolic link"), "replace the link by a copy of its target")
	}
	if err != nil {
		return fail(err, "make the file readable for you")
	}
	defer func() { _ = f.Close() }()
	if err := private(f); err != nil {
		return fail(err,
			"run: chmod go-w "+path+", or write the file again as the user that runs turn")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail(err, "make the file readable for you")
	}
	if len(b) > maxFile {
		return fail(fmt.Errorf("it is larger than %s", turnstone.Bytes(maxFile).Human()),
			"shorten the file")
	}
	c, err := Parse(string(b))
	if err != nil {
		return fail(err, cmp.Or(turnstone.HintOf(err), "see docs/security.md for the keys"))
	}
	return c, nil
}

// private rejects a file that another user can write because the file grants permissions.
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
		return fmt.Errorf("other users can write it (mode %04o)", st.Mode().Perm())
	}
	return nil
}
