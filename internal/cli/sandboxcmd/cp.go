package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/terminal"
)

type sandboxCpCmd struct {
	Src string `arg:"" help:"Source: PATH, SANDBOX:PATH, or - for standard input."`
	Dst string `arg:"" help:"Destination: PATH, SANDBOX:PATH, or - for standard output."`
}

// Help returns the text below the command's summary.
func (c *sandboxCpCmd) Help() string {
	return `Exactly one path is in a sandbox. Write it as SANDBOX:PATH with an ID, an ID prefix or
a name, and an absolute path. Write a local path that contains a colon with ./ or / at
its beginning.

If the destination is a folder or ends in a slash, the copy is created in it and keeps
its name. Otherwise the copy gets the name of the destination, and replaces an existing
file. - copies one file.

A file gets its name when it is complete. If a copy of a folder fails, the files that
were complete stay, and no part of another.

A symlink that is named as the source is followed; symlinks below a folder are copied
as symlinks, and hard links as separate files. Files from a sandbox are untrusted: symlinks
that lead out of the copied folder, devices and set-user-ID bits are not copied. Modes are
subject to the umask. A copy that fails can be repeated.`
}

// Examples returns command lines for the help.
func (c *sandboxCpCmd) Examples() []string {
	return []string{
		"turn sandbox cp data.csv box:/workspace/",
		"turn sandbox cp box:/workspace/out.csv .",
	}
}

// A place is one end of a copy.
type place struct {
	sandbox string // empty: this machine
	path    string // "-": a standard stream
}

var sandboxPlace = lazyregexp.New(`^([A-Za-z0-9][A-Za-z0-9_.-]*):(.*)$`)

func parsePlace(text string) (place, error) {
	m := sandboxPlace.FindStringSubmatch(text)
	if m == nil {
		if text == "" {
			return place{}, errors.New("a path is empty")
		}
		return place{path: text}, nil
	}
	if !path.IsAbs(m[2]) {
		return place{}, fmt.Errorf("%s: a path in a sandbox is absolute, such as %s:/workspace/%s",
			text, m[1], m[2])
	}
	return place{sandbox: m[1], path: m[2]}, nil
}

// ends parses both ends.
func (c *sandboxCpCmd) ends() (src, dst place, err error) {
	if src, err = parsePlace(c.Src); err != nil {
		return
	}
	if dst, err = parsePlace(c.Dst); err != nil {
		return
	}
	switch {
	case src.sandbox == "" && dst.sandbox == "":
		err = errors.New("no path is in a sandbox: write one path as SANDBOX:/PATH")
	case src.sandbox != "" && dst.sandbox != "":
		err = errors.New("both paths are in a sandbox: copy to this machine first")
	case src.path == "-" && strings.HasSuffix(dst.path, "/"):
		err = errors.New("standard input has no name: write the name of the file")
	}
	return
}

// Validate is called by kong.
func (c *sandboxCpCmd) Validate() error {
	_, _, err := c.ends()
	return err
}

// Run copies.
func (c *sandboxCpCmd) Run(a *cli.App) error {
	src, dst, err := c.ends()
	if err != nil {
		return cli.Usage(err)
	}
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		i, err := s.Find(ctx, src.sandbox+dst.sandbox)
		if err != nil {
			return err
		}
		err = c.copy(ctx, a, s, i.ID, src, dst)
		var sig cli.Interruption
		switch {
		case errors.As(context.Cause(ctx), &sig):
			return cli.Exit(128+int(sig.Signal), sig)
		case errors.Is(err, syscall.EPIPE) && dst.path == "-":
			return cli.Exit(128+int(syscall.SIGPIPE), nil)
		}
		return err
	})
}

func (c *sandboxCpCmd) copy(
	ctx context.Context, a *cli.App, s cli.SandboxFiles, id turnstone.SandboxID, src, dst place,
) error {
	switch {
	case src.path == "-":
		return s.WriteFile(ctx, id, dst.path, a.Stdin)
	case src.sandbox == "":
		return s.Upload(ctx, id, src.path, dst.path)
	case dst.path == "-":
		return s.ReadFile(ctx, id, src.path, terminal.NewSink(a.Stdout, nil, func(error) {}))
	}
	skipped := func(what string) { terminal.Println(a.Stderr, "turn: "+what) }
	return s.Download(ctx, id, src.path, dst.path, skipped)
}
