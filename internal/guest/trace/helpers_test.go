package trace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A result is the outcome of a run of a script.
type result struct {
	stdout, stderr string
	exit           int
	report         *Report
	live           []Record
}

func newTracer(t testing.TB) *Tracer {
	t.Helper()
	tr, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

// baseEnv is the environment of steps in tests.
func baseEnv(dir string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LC_ALL=C",
		"TERM=dumb"}
}

// runScript runs bash on a file in dir, traced if tr is not nil. TURN_TEST_BASH names another bash
// than the system's, with optional arguments.
func runScript(t testing.TB, tr *Tracer, dir string, env []string, argv ...string) result {
	t.Helper()
	return runAs(t, tr, dir, &syscall.SysProcAttr{Setsid: true}, env, argv...)
}

func runAs(t testing.TB, tr *Tracer, dir string, attr *syscall.SysProcAttr, env []string,
	argv ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	bash := strings.Fields(cmp.Or(os.Getenv("TURN_TEST_BASH"), "/bin/bash"))
	cmd := exec.CommandContext(ctx, bash[0], append(bash[1:], argv...)...)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = attr
	var rec *Recorder
	if tr != nil {
		var err error
		if rec, err = tr.Record(env); err != nil {
			t.Fatal(err)
		}
		cmd.Env, cmd.ExtraFiles = rec.Env(), rec.Files()
	}
	var pipes [2]*os.File
	var ends [2]*os.File
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pipes[i], ends[i] = r, w
	}
	cmd.Stdout, cmd.Stderr = ends[0], ends[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if rec != nil {
		rec.Started(cmd.Process.Pid)
	}
	ends[0].Close()
	ends[1].Close()
	var wg sync.WaitGroup
	var out [2]bytes.Buffer
	for i := range pipes {
		wg.Go(func() { pump(&out[i], pipes[i], rec, i+1) })
	}
	err := cmd.Wait()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	for _, p := range pipes { // a background job that holds one has ended by then
		_ = p.SetReadDeadline(time.Now().Add(2 * time.Minute))
	}
	wg.Wait()
	pipes[0].Close()
	pipes[1].Close()
	res := result{stdout: out[0].String(), stderr: out[1].String(),
		exit: cmd.ProcessState.ExitCode()}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		res.exit = 128 + int(ws.Signal())
	}
	if rec != nil {
		res.live = rec.Drain()
		res.report = rec.Finish(res.exit)
	}
	return res
}

// pump reads a stream as the agent does: the recorder is called around each read that does not
// block.
func pump(to *bytes.Buffer, from *os.File, rec *Recorder, stream int) {
	rc, err := from.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		n, rerr := 0, error(nil)
		err := rc.Read(func(fd uintptr) bool {
			if rec != nil {
				rec.Reading(stream)
			}
			n, rerr = syscall.Read(int(fd), buf)
			if rec != nil {
				rec.Read(stream, max(0, n))
			}
			return rerr != syscall.EAGAIN
		})
		if n > 0 {
			to.Write(buf[:n])
		}
		if err != nil || n <= 0 {
			return
		}
	}
}

// traced runs a script's text and fails if it was not traced.
func traced(t testing.TB, script string) result {
	t.Helper()
	res := tracedAnyhow(t, script)
	if res.report.Untraced != "" {
		t.Fatalf("untraced: %s\n%s", res.report.Untraced, res.stderr)
	}
	return res
}

func tracedAnyhow(t testing.TB, script string) result {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "step.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return runScript(t, newTracer(t), dir, baseEnv(dir), path)
}

// find returns the records whose words begin with prefix.
func (res result) find(prefix string) []Record {
	var out []Record
	for _, r := range res.report.Records {
		if strings.HasPrefix(r.Words, prefix) {
			out = append(out, r)
		}
	}
	return out
}

func (res result) one(t testing.TB, prefix string) Record {
	t.Helper()
	got := res.find(prefix)
	if len(got) != 1 {
		t.Fatalf("%d records of %q in %+v", len(got), prefix, res.report.Records)
	}
	return got[0]
}

// startWith runs another program instead of the step's shell.
func startWith(rec *Recorder, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.ExtraFiles = rec.Env(), rec.Files()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	rec.Started(cmd.Process.Pid)
	err := cmd.Wait()
	return out.String(), err
}
