package trace

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"
)

// A corpus script runs in a folder of the same name both times and leaves files there.
func corpusRun(t *testing.T, tr *Tracer, dir, script string, env []string,
	args ...string) (result, string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "step.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return runScript(t, tr, dir, env, append([]string{path}, args...)...), tree(t, dir)
}

// tree describes all files below dir with modes and contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s", strings.TrimPrefix(path, dir), info.Mode())
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// varying are scripts whose output contains times or process numbers: only those digits may differ.
var varying = map[string]bool{"time": true, "kill-subshell": true, "kill-child": true,
	"signal-child":       true,
	"recursion-infinite": true}

var digits = regexp.MustCompile(`[0-9]+`)

func steady(name, s string) string {
	if !varying[name] {
		return s
	}
	return digits.ReplaceAllString(s, "0")
}

func compare(t *testing.T, name, script string, env func(dir string) []string, args ...string) {
	t.Helper()
	tr := newTracer(t)
	dir := filepath.Join(t.TempDir(), "w")
	var last string
	for range 3 { // a script with background jobs can vary on a busy machine
		plain, files := corpusRun(t, nil, dir, script, env(dir), args...)
		res, tracedFiles := corpusRun(t, tr, dir, script, env(dir), args...)
		switch {
		case steady(name, plain.stdout) != steady(name, res.stdout):
			last = fmt.Sprintf("stdout: plain %.2000q, traced %.2000q", plain.stdout, res.stdout)
		case steady(name, plain.stderr) != steady(name, res.stderr):
			last = fmt.Sprintf("stderr: plain %.2000q, traced %.2000q", plain.stderr, res.stderr)
		case plain.exit != res.exit:
			last = fmt.Sprintf("exit: plain %d, traced %d", plain.exit, res.exit)
		case files != tracedFiles:
			last = fmt.Sprintf("files: plain\n%s\ntraced\n%s", files, tracedFiles)
		case res.report.Untraced != "" && !strings.Contains(res.report.Untraced, "was replaced by"):
			t.Fatalf("untraced: %s", res.report.Untraced)
		default:
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error(last)
}

func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/corpus/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 200 {
		t.Fatalf("%d scripts, want at least 200", len(names))
	}
	for _, path := range names {
		name := strings.TrimSuffix(filepath.Base(path), ".sh")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name, string(b), baseEnv)
		})
	}
}
