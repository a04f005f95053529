// Package performed records the commands of a sandbox that belongs to a session, for the turn that
// they become.
package performed

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone/wire"
)

// A Command is a command that was run in a session's sandbox, as its holder has recorded it.
// Secrets are masked in all of it.
type Command struct {
	ID      string    `json:"id"` // the process
	Started time.Time `json:"started"`

	Argv     []string `json:"argv,omitempty"`     // of a process
	Script   string   `json:"script,omitempty"`   // of a step of the shell
	Language string   `json:"language,omitempty"` // "bash" or "sh" of a step; empty: a process
	Name     string   `json:"name,omitempty"`     // of a step

	Env      []string `json:"env,omitempty"`     // KEY=VALUE that its client added
	Secrets  []string `json:"secrets,omitempty"` // names of further variables, whose values are gone
	Cwd      string   `json:"cwd"`
	User     string   `json:"user,omitempty"` // as its client named it
	Terminal bool     `json:"terminal,omitempty"`
	Cut      bool     `json:"cut,omitempty"` // Argv, Script or Env is not complete

	Input     []byte `json:"input,omitempty"` // the beginning of its standard input
	InputSize int64  `json:"input_size,omitempty"`

	Exit   *wire.ProcessExit `json:"exit,omitempty"` // nil: it runs, or its end is unknown
	Took   time.Duration     `json:"took,omitempty"` // until its end, or the commit
	Ended  bool              `json:"ended,omitempty"`
	Stdout Output            `json:"stdout"`
	Stderr Output            `json:"stderr"`

	Passed bool `json:"passed,omitempty"` // a turn has it already
	number int  // of its files
}

// An Output is one output of a Command.
type Output struct {
	Path string `json:"-"`              // the file with its beginning; empty: none
	Size int64  `json:"size,omitempty"` // bytes of the command's output
	Kept int64  `json:"kept,omitempty"` // bytes of it, before masking, that the file has
	Lost int64  `json:"lost,omitempty"` // bytes that the holder did not receive
}

// Dir is the folder of the commands in a sandbox's folder: N.json, N.out and N.err for the
// command with the number N.
const Dir = "commands"

func commandFile(dir string, number int, ext string) string {
	return filepath.Join(dir, strconv.Itoa(number)+ext)
}

func (p *Command) write(dir string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// Only this process reads it, or a copy that this process makes: a crash of the host ends both.
	return os.WriteFile(commandFile(dir, p.number, ".json"), b, 0o600)
}

func (p *Command) remove(dir string) {
	for _, ext := range []string{".json", ".out", ".err"} {
		_ = os.Remove(commandFile(dir, p.number, ext))
	}
}

// readCommands reads the commands of a folder, in the order of their numbers.
func readCommands(dir string) ([]*Command, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Command
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		number, err := strconv.Atoi(name)
		if !ok || err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		p := &Command{number: number}
		if err := json.Unmarshal(b, p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Command) int { return a.number - b.number })
	return all, nil
}

// Copy copies a folder of commands: what has ended is linked, and what runs is copied.
func Copy(from, to string) error {
	all, err := readCommands(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, p := range all {
		for _, ext := range []string{".json", ".out", ".err"} {
			src, dst := commandFile(from, p.number, ext), commandFile(to, p.number, ext)
			copyFile := os.Link
			if !p.Ended {
				copyFile = duplicate
			}
			if err := copyFile(src, dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func duplicate(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	return errors.Join(err, out.Close())
}
