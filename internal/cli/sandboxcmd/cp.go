package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

type sandboxCpCmd struct {
	Src     string `arg:"" help:"Source: PATH, SANDBOX:PATH, or - for standard input."`
	Dst     string `arg:"" help:"Destination: PATH, SANDBOX:PATH, or - for standard output."`
	Archive bool   `short:"a" help:"Keep owners, by numbers; out of a sandbox as root only."`
	Follow  bool   `name:"follow-link" short:"L" help:"Follow a symlink named as the source (always on)."`
}

// Help returns the text below the command's summary.
func (c *sandboxCpCmd) Help() string {
	return `Exactly one path is in a sandbox. Write it as SANDBOX:PATH with an ID, an ID prefix or
a name. A relative PATH begins in the sandbox's working directory, where commands of exec
start. Write a local path that contains a colon with ./ or / at its beginning.

A file is copied into a destination that is a folder or ends in a slash, and keeps its
name; otherwise it gets the name of the destination, and replaces an existing file.
A folder is copied into a destination that is a folder, and keeps its name; otherwise it
gets the name of the destination, which cannot be a file. SOURCE/. copies what is in the
folder into the destination. Missing folders on the way are created.

- copies the content of one file. To a sandbox's folder, it is a tar stream, which is
unpacked there; of a sandbox's folder, it is a tar stream of the folder.

A file gets its name when it is complete. If a copy of a folder fails, the files that
were complete stay, and no part of another.

A symlink that is named as the source is followed; symlinks below a folder are copied
as symlinks, and hard links as separate files. Holes stay holes. Files from a sandbox are
untrusted: symlinks that lead out of the copied folder, devices and set-user-ID bits are
not copied. Modes are subject to the umask. A copy that fails can be repeated.`
}

// Examples returns command lines for the help.
func (c *sandboxCpCmd) Examples() []string {
	return []string{
		"turn sandbox cp data.csv box:",
		"turn sandbox cp project/. box:/workspace",
		"turn sandbox cp box:out.csv .",
		"tar c src | turn sandbox cp - box:/workspace/",
	}
}

// A place is one end of a copy.
type place struct {
	sandbox string // empty: this machine
	path    string // "-": a standard stream
}

// stream reports whether p is a standard stream.
func (p place) stream() bool { return p.sandbox == "" && p.path == "-" }

var sandboxPlace = lazyregexp.New(`^([A-Za-z0-9][A-Za-z0-9_.-]*):(.*)$`)

func parsePlace(text string) (place, error) {
	m := sandboxPlace.FindStringSubmatch(text)
	if m != nil && !filepath.IsAbs(text) { // on Windows, a path may begin with a letter and a colon
		return place{sandbox: m[1], path: m[2]}, nil
	}
	if text == "" {
		return place{}, errors.New("a path is empty")
	}
	return place{path: text}, nil
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
		err = errors.New("no path is in a sandbox: write one path as SANDBOX:PATH")
	case src.sandbox != "" && dst.sandbox != "":
		err = errors.New("both paths are in a sandbox: copy to this machine first")
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
		one := copying{SandboxFiles: s, app: a, id: i.ID, owners: c.Archive}
		if cwd := cmp.Or(i.Workdir, defaultWorkdir); src.sandbox != "" {
			err = one.out(ctx, below(cwd, src.path), dst)
		} else {
			err = one.in(ctx, src, below(cwd, dst.path))
		}
		var sig cli.Interruption
		switch {
		case errors.As(context.Cause(ctx), &sig):
			return cli.Exit(128+int(sig.Signal), sig)
		case errors.Is(err, syscall.EPIPE) && dst.stream():
			return cli.Exit(128+int(syscall.SIGPIPE), nil)
		}
		return err
	})
}

// below returns a path of a sandbox whose commands start in cwd as an absolute one. It is not cleaned: a slash at its
// end has a meaning, and ".." after a symlink, too.
func below(cwd, p string) string {
	if path.IsAbs(p) {
		return p
	}
	return strings.TrimRight(cwd, "/") + "/" + p
}

// defaultWorkdir is the working directory of sandboxes of earlier versions, which do not say theirs.
const defaultWorkdir = "/workspace"

// A copying copies files in and out of a sandbox.
type copying struct {
	cli.SandboxFiles
	app    *cli.App
	id     turnstone.SandboxID
	owners bool
}

// in copies src to dest in the sandbox.
func (c *copying) in(ctx context.Context, src place, dest string) error {
	if !src.stream() {
		st, err := os.Stat(src.path)
		return c.CopyIn(ctx, c.id, sandboxes.Copy{From: src.path, Owners: c.owners,
			To: destination(dest, src.path, err == nil && st.IsDir())})
	}
	folder := strings.HasSuffix(dest, "/")
	if !folder {
		at, err := c.Stat(ctx, c.id, dest)
		folder = err == nil && at.Type == wire.FileSystemFileInfoTypeDirectory
	}
	if !folder {
		return c.WriteFile(ctx, c.id, dest, c.app.Stdin)
	}
	err := c.Unpack(ctx, c.id, sandboxes.Copy{To: dest, Owners: c.owners}, c.app.Stdin)
	if turnstone.KindOf(err) == turnstone.KindInvalid && turnstone.HintOf(err) == "" {
		err = turnstone.NewError("sandbox.cp", turnstone.KindInvalid, "-", err).
			WithHint("write a tar stream, without compression, or name the file that the content is for")
	}
	return err
}

// out copies src of the sandbox to dst.
func (c *copying) out(ctx context.Context, src string, dst place) error {
	at, err := c.Stat(ctx, c.id, src)
	if err != nil {
		return err
	}
	folder := at.Type == wire.FileSystemFileInfoTypeDirectory
	if dst.stream() {
		var w io.Writer = terminal.NewSink(c.app.Stdout, nil, func(error) {})
		if !folder {
			return c.ReadFile(ctx, c.id, src, w)
		}
		src, _ = tarfiles.CutContents(src)
		return c.Pack(ctx, c.id, sandboxes.Copy{From: src, Owners: c.owners}, w)
	}
	skipped := func(what string) { terminal.Println(c.app.Stderr, "turn: "+what) }
	return c.CopyOut(ctx, c.id, sandboxes.Copy{From: src, To: destination(dst.path, src, folder),
		Owners: c.owners, Skipped: skipped})
}

// destination returns where a copy of source goes. Slashes at the end of a destination say that it is a folder, as a
// copy of a folder is anyway: if it is not there yet, it is the copy.
func destination(dest, source string, folder bool) string {
	_, contents := tarfiles.CutContents(source)
	if trimmed := strings.TrimRight(dest, "/"); folder && trimmed != "" && !contents {
		return trimmed
	}
	return dest
}
