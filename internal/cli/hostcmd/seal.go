package hostcmd

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/terminal"
)

type sealCmd struct {
	Name    string `arg:"" help:"Host."`
	KeyFile string `name:"key-file" help:"Use the key in this file, such as one of another machine." type:"path" placeholder:"FILE"`
	Off     bool   `help:"Send no key any longer; its file stays."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Validate is called by kong.
func (c *sealCmd) Validate() error {
	if c.Off && c.KeyFile != "" {
		return errors.New("--off and --key-file contradict each other")
	}
	return nil
}

// Help is shown below the flags' summary.
func (c *sealCmd) Help() string {
	return `Commands send the key to the host's nodes, inside the encrypted channel. A node keeps
it in memory while it works for you, and for a while after (keys.idle): then nobody
there can read your sessions. The server has to be configured for it: docs/keys.md.

Keep a copy of the file: without the key, nobody can read the sessions again.`
}

// Examples returns command lines for the help.
func (c *sealCmd) Examples() []string {
	return []string{"turn host seal work", "turn host seal work --key-file /media/stick/work.key",
		"turn host seal work --off"}
}

// Run makes the key, or selects it.
func (c *sealCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		s, err := store(a)
		if err != nil {
			return err
		}
		list, err := s.Load()
		if err != nil {
			return err
		}
		name, _, err := list.Find(c.Name)
		if err != nil {
			return err
		}
		path, err := c.file(ctx, s, name)
		if err != nil {
			return err
		}
		var rep HostReport
		err = s.Change(ctx, func(l *hosts.List) error {
			_, h, err := l.Find(name)
			if err != nil {
				return err
			}
			h.SealFile = path
			rep, err = report(name, h, l.Current)
			return err
		})
		return a.Result(rep, err, func(w io.Writer) {
			if path != "" {
				terminal.Println(w, terminal.Name(path))
			}
		})
	})
}

// file returns the path of the key; empty: none.
func (c *sealCmd) file(ctx context.Context, s hosts.Store, name string) (string, error) {
	if c.Off {
		return "", nil
	}
	path, err := filepath.Abs(c.KeyFile)
	if c.KeyFile == "" {
		path, err = s.MakeSeal(ctx, name)
	}
	if err != nil {
		return "", err
	}
	key, err := hosts.ReadSeal(path)
	clear(key)
	return path, err
}
