package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// A statePath is REF:PATH.
type statePath struct{ ref, path string }

// UnmarshalText is called by kong.
func (p *statePath) UnmarshalText(text []byte) error {
	ref, path, ok := strings.Cut(string(text), ":")
	if !ok || ref == "" {
		return fmt.Errorf("%q: write TURN:PATH, such as research@2:/workspace/out.csv", text)
	}
	*p = statePath{ref, path}
	return nil
}

type lsCmd struct {
	Path      statePath `arg:"" help:"TURN:PATH, such as research@2:/workspace." placeholder:"TURN:PATH"`
	Recursive bool      `short:"R" help:"List subfolders recursively."`
	Names     bool      `help:"Print paths only." xor:"form"`
	JSON      bool      `name:"json" help:"Print one JSON document per file." xor:"form"`
}

// Help returns the text below the command's summary.
func (c *lsCmd) Help() string {
	return `One file is one line: a name with a line break, another control character, or bytes
that are not text is quoted, such as "a\nb". --json replaces such bytes by U+FFFD; turn
cp copies every name unchanged.`
}

// Examples returns command lines for the help.
func (c *lsCmd) Examples() []string {
	return []string{
		"turn ls -R research:/workspace",
	}
}

// Run lists files of a state.
func (c *lsCmd) Run(a *cli.App) error {
	refs := []*string{&c.Path.ref}
	return a.WithRefs(refs, func(ctx context.Context, x cli.Executor) error {
		out := bufio.NewWriter(a.Stdout)
		err := x.ListFiles(ctx, c.Path.ref, c.Path.path, c.Recursive,
			func(f turnstone.FileInfo) error {
				switch {
				case c.JSON:
					return a.WriteLine(out, f)
				case c.Names:
					_, err := terminal.Println(out, terminal.Name(f.Path))
					return err
				}
				_, err := terminal.Println(out, fileLine(f))
				return err
			})
		return errors.Join(err, out.Flush())
	})
}

// fileLine returns a file's line as in ls -l.
func fileLine(f turnstone.FileInfo) string {
	target := ""
	if f.Target != "" {
		target = " -> " + terminal.Name(f.Target)
	}
	return fmt.Sprintf("%s %5d:%-5d %10s %s %s%s", modeOf(f), f.UID, f.GID,
		turnstone.Bytes(f.Size).Human(), f.MTime.Format(time.DateTime), terminal.Name(f.Path),
		target)
}

// modeOf returns type and permissions as in ls -l: "lrwxrwxrwx", "drwxrwxrwt".
func modeOf(f turnstone.FileInfo) string {
	mode := []byte("-rwxrwxrwx")
	types := map[string]byte{"dir": 'd', "symlink": 'l', "char": 'c', "block": 'b', "fifo": 'p'}
	if t, ok := types[f.Type]; ok {
		mode[0] = t
	}
	for i := range 9 {
		if f.Mode&(1<<(8-i)) == 0 {
			mode[1+i] = '-'
		}
	}
	for _, special := range []struct {
		bit  uint32
		at   int
		sign byte
	}{{0o4000, 3, 's'}, {0o2000, 6, 's'}, {0o1000, 9, 't'}} {
		if uint32(f.Mode)&special.bit == 0 {
			continue
		}
		if mode[special.at] == '-' {
			special.sign -= 'a' - 'A' // the bit without the permission to execute
		}
		mode[special.at] = special.sign
	}
	return string(mode)
}

type catCmd struct {
	Path statePath `arg:"" help:"TURN:PATH, such as research@2:/workspace/out.csv." placeholder:"TURN:PATH"`
}

// Examples returns command lines for the help.
func (c *catCmd) Examples() []string {
	return []string{
		"turn cat research@2:/workspace/out.csv",
	}
}

// Run prints a file of a state.
func (c *catCmd) Run(a *cli.App) error {
	refs := []*string{&c.Path.ref}
	return a.WithRefs(refs, func(ctx context.Context, x cli.Executor) error {
		in, err := x.OpenFile(ctx, c.Path.ref, c.Path.path)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
		return terminal.Copy(a.Stdout, in)
	})
}
