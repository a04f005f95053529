package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// command runs a program in dir that prints nothing unless it fails.
func command(ctx context.Context, dir, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath(filepath.Join("/usr/sbin", name)); err != nil {
			return fmt.Errorf("%w; scripts/setup bench installs it", err)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, nil, &out
	// Ignore this machine's settings, and set a repository's password.
	cmd.Env = append(os.Environ(), "RESTIC_PASSWORD=bench", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=bench", "GIT_AUTHOR_EMAIL=bench@example.com", "GIT_COMMITTER_NAME=bench",
		"GIT_COMMITTER_EMAIL=bench@example.com")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}

// tools are the programs to compare with, with their default settings, and the floors: reading,
// compressing and hashing alone.
func tools(src string) []keeper {
	shell := func(script string) func(context.Context, string) error {
		return func(ctx context.Context, repo string) error {
			return command(ctx, src, "sh", "-c", script, "sh", repo)
		}
	}
	return []keeper{
		{name: "restic", programs: []string{"restic"}, peer: true, again: true,
			prepare: func(ctx context.Context, repo string) error {
				return command(ctx, "", "restic", "-q", "-r", repo, "--no-cache", "init")
			},
			keep: func(ctx context.Context, repo string) error {
				return command(ctx, src, "restic", "-q", "-r", repo, "--no-cache", "backup", ".")
			}},
		{name: "git", programs: []string{"git"}, peer: true, again: true,
			prepare: func(ctx context.Context, repo string) error {
				return command(ctx, "", "git", "init", "-q", "--bare", repo)
			},
			keep: shell(`g="git --git-dir=$1 --work-tree=. -c gc.auto=0 -c core.bare=false"; ` +
				`$g add -A -f . && $g commit -q --allow-empty -m turn`)},
		{name: "ostree", programs: []string{"ostree"}, peer: true, again: true,
			prepare: func(ctx context.Context, repo string) error {
				return command(ctx, "", "ostree", "init", "--repo="+repo, "--mode=bare")
			},
			keep: func(ctx context.Context, repo string) error {
				return command(ctx, src, "ostree", "commit", "--repo="+repo, "--branch=main",
					"--subject=turn", ".")
			}},
		{name: "floor: tar \\| zstd -1", programs: []string{"zstd"},
			keep: shell(`tar -cf - . | zstd -q -1 -T0 -o "$1/all.tar.zst"`)},
		{name: "floor: sha256sum, two at a time", noRepo: true,
			keep: shell(`find . -type f -print0 | xargs -0 -n 200 -P 2 sha256sum`)},
	}
}

// installed returns the keepers whose programs are installed, and a sentence that names the others.
func installed(all []keeper) (found []keeper, absent string) {
	for _, k := range all {
		missing := slices.ContainsFunc(k.programs, func(name string) bool {
			_, err := exec.LookPath(name)
			return err != nil
		})
		if missing {
			absent += fmt.Sprintf(" Not installed here: %s.", k.name)
			continue
		}
		found = append(found, k)
	}
	return found, absent
}

// sourceFiles fills dir with some files of Go's own source and of this module's dependencies.
func sourceFiles(ctx context.Context, dir string, left int) error {
	for i, name := range []string{"GOROOT", "GOMODCACHE"} {
		out, err := exec.CommandContext(ctx, "go", "env", name).Output()
		if err != nil {
			return fmt.Errorf("go env: %w", err)
		}
		root := strings.TrimSpace(string(out))
		if i == 0 {
			root = filepath.Join(root, "src")
		}
		left, err = copyFiles(root, filepath.Join(dir, strings.ToLower(name)), left)
		if err != nil {
			return err
		}
	}
	if left > 0 {
		return fmt.Errorf("there are %d files too few in Go's folders", left)
	}
	return nil
}

// copyFiles copies up to limit regular files, and returns the remaining limit.
func copyFiles(src, dst string, limit int) (int, error) {
	err := filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case limit == 0:
			return filepath.SkipAll
		case e.Name() == ".git" || path == filepath.Join(src, "cache"):
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, strings.TrimPrefix(path, src))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		limit--
		return os.WriteFile(to, b, 0o644)
	})
	return limit, err
}

// largeFiles fills dir with eight files of a size: tables of numbers as text, and incompressible data.
func largeFiles(dir string, size int) error {
	const files = 8
	r := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		name, fill := "random.bin", fillRandom
		if i%2 == 0 {
			name, fill = "table.csv", fillTable
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d-%s", i, name)))
		if err != nil {
			return err
		}
		err = fill(f, r, size)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func fillRandom(w io.Writer, r *rand.Rand, size int) error {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(r.Uint32())
	}
	_, err := io.CopyN(w, rand.NewChaCha8(seed), int64(size))
	return err
}

func fillTable(w io.Writer, r *rand.Rand, size int) error {
	cities := []string{"Oslo", "Lima", "Accra", "Hanoi", "Quito", "Turin", "Perth", "Osaka"}
	var b bytes.Buffer
	for row := 0; size > 0; row++ {
		fmt.Fprintf(&b, "%d,2026-%02d-%02d,%s,%.2f,%d,%t\n", row, 1+r.IntN(12), 1+r.IntN(28),
			cities[r.IntN(len(cities))], 40*r.Float64()-10, r.IntN(100000), r.IntN(2) == 0)
		if b.Len() < 1<<20 && b.Len() < size {
			continue
		}
		n, err := w.Write(b.Bytes()[:min(b.Len(), size)])
		if err != nil {
			return err
		}
		size -= n
		b.Reset()
	}
	return nil
}
