// Command overlay creates gVisor's source with Turnstone's additions: a copy of the pinned module
// with edits and additional files. The go command does not allow an overlay for files of its module
// cache. Therefore the copy is a separate folder, and a go.mod replaces the module with the copy.
// Run the command in the folder of the module runsc:
//
//	go run ./overlay DIR
//	go build -modfile DIR/go.mod
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "gvisor.dev/gvisor"

// added is the folder with additional files for gVisor's packages. The go command ignores folders
// whose names begin with an underscore.
const added = "overlay/_gvisor"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	source, err := moduleDir()
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	target := filepath.Join(dir, "gvisor")
	if err := copyModule(source, target); err != nil {
		return err
	}
	if err := addFiles(target); err != nil {
		return err
	}
	if err := editFiles(target); err != nil {
		return err
	}
	return modFile(dir, target)
}

// modFile writes this module's go.mod with the copy in place of gVisor's module.
func modFile(dir, target string) error {
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if name == "go.mod" {
			b = append(b, fmt.Sprintf("\nreplace %s => %s\n", module, target)...)
		}
		if err := write(filepath.Join(dir, name), b); err != nil {
			return err
		}
	}
	return nil
}

// prebuilt is a program for checkpoints in Google's storage. gVisor's module contains 47 MB of its
// machine code. Turnstone ships only programs that are built from source: the copy is empty.
const prebuilt = "runsc/checkpointgofer/checkpointgofer.bin"

// copyModule copies the module without its tests.
func copyModule(source, target string) error {
	return filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		var b []byte
		if name != prebuilt {
			if b, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		return write(filepath.Join(target, name), b)
	})
}

// moduleDir returns the folder of gVisor's module, and downloads the module if necessary.
func moduleDir() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var m struct{ Dir, Error string }
	if jerr := json.Unmarshal(out, &m); jerr != nil && err == nil {
		err = jerr
	}
	if m.Error != "" {
		err = errors.New(m.Error)
	}
	if err != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, err)
	}
	return m.Dir, nil
}

// addFiles copies the additional files to gVisor's packages.
func addFiles(target string) error {
	return filepath.WalkDir(added, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(added, path)
		if err != nil {
			return err
		}
		to := filepath.Join(target, name)
		if _, err := os.Stat(to); err == nil {
			return fmt.Errorf("gVisor already has a file %s", name)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return write(to, b)
	})
}

// editFiles applies the edits.
func editFiles(target string) error {
	for _, e := range slices.Concat(edits, erofsEdits, overlayEdits) {
		path := filepath.Join(target, e.file)
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("edit %q: %w", e.name, err)
		}
		if n := strings.Count(string(b), e.old); n != 1 {
			return fmt.Errorf("edit %q: %s contains the piece %d times, want once",
				e.name, e.file, n)
		}
		if err := write(path, []byte(strings.Replace(string(b), e.old, e.new, 1))); err != nil {
			return err
		}
	}
	return nil
}

func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
