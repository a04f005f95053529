package script

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// call returns a command with data.
func call(t testing.TB, method string, params any, data string) substrate.Call {
	t.Helper()
	b, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	c := substrate.Call{Method: method, Params: b}
	if data != "" {
		c.Data, c.Size = strings.NewReader(data), int64(len(data))
	}
	return c
}

func step(t testing.TB, name, text string) substrate.Call {
	return call(t, wire.MethodShellExecute, wire.ShellExecuteParams{Name: name}, text)
}

// encoded returns calls as the guest reads them.
func encoded(t testing.TB, calls ...substrate.Call) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Encode(&b, calls); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// performed returns a client of an agent that has performed calls.
func performed(t *testing.T, spool func() (*os.File, error), calls ...substrate.Call) (*wire.Client,
	string) {
	t.Helper()
	b := encoded(t, calls...)
	read, err := Decode(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if spool == nil {
		spool = func() (*os.File, error) { return os.CreateTemp(dir, "output-*") }
	}
	r := New(read, spool)
	a, err := agent.New(agent.Options{RunDir: filepath.Join(dir, "run"), Cwd: dir, Script: r,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	if err := r.Run(t.Context(), a.ServeConn); err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	a.ServeConn(far)
	c := wire.NewClient(near)
	t.Cleanup(func() { _ = c.Close() })
	return c, dir
}

// TestOnce checks that the commands of the script are performed once, before the host comes, and
// answered in order; the next command is performed when it comes.
func TestOnce(t *testing.T) {
	const text = "echo one; echo two >&2; echo x >>f; exit 3"
	first := step(t, "a", text)
	first.Continue = true
	c, dir := performed(t, nil, first, step(t, "b", "wc -l <f"))
	file := filepath.Join(dir, "f")
	if b, _ := os.ReadFile(file); string(b) != "x\n" {
		t.Fatalf("before the host: %q", b)
	}
	var out, errOut bytes.Buffer
	var records []wire.ShellRecord
	end, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, text,
		wire.Stdio{Out: &out, Err: &errOut}, func(r []wire.ShellRecord) {
			records = append(records, r...)
		})
	if err != nil || end.Exit.ExitCode != 3 || out.String() != "one\n" ||
		errOut.String() != "two\n" || end.Path == "" || end.StdoutEnd != 4 {
		t.Errorf("%+v, %v, %q, %q", end, err, out.String(), errOut.String())
	}
	out.Reset()
	for i, want := range []string{"1\n", "1\n"} { // from the script, and then performed
		name := []string{"b", "later"}[i]
		if _, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: name}, "wc -l <f",
			wire.Stdio{Out: &out}, nil); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		out.Reset()
	}
	if b, _ := os.ReadFile(file); string(b) != "x\n" {
		t.Errorf("after the host: %q", b)
	}
}

// TestDiverges checks that a command that differs from the script is an error, and not performed.
func TestDiverges(t *testing.T) {
	tar := strings.Repeat("\x00", 1024)
	for name, ask := range map[string]func(c *wire.Client) error{
		"another text": func(c *wire.Client) error {
			_, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo 2",
				wire.Stdio{}, nil)
			return err
		},
		"a longer text": func(c *wire.Client) error {
			_, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo 1\n",
				wire.Stdio{}, nil)
			return err
		},
		"another text in a stream": func(c *wire.Client) error {
			_, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo \xff",
				wire.Stdio{}, nil)
			return err
		},
		"another name": func(c *wire.Client) error {
			_, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "b"}, "echo 1",
				wire.Stdio{}, nil)
			return err
		},
		"another command": func(c *wire.Client) error {
			return c.StateSetSession(t.Context(), &wire.StateSetSessionParams{Cwd: "/"})
		},
		"a file": func(c *wire.Client) error {
			return c.Put(t.Context(), "/nowhere", strings.NewReader(tar))
		},
		"a process": func(c *wire.Client) error {
			_, err := c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"true"}},
				wire.Stdio{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := performed(t, nil, step(t, "a", "echo 1"))
			err := ask(c)
			if turnstone.KindOf(err) != turnstone.KindIntegrity ||
				!strings.Contains(err.Error(), "differs from its script") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestReads checks that commands that change nothing are performed at any time.
func TestReads(t *testing.T) {
	c, dir := performed(t, nil, step(t, "a", "echo 1 >f"))
	st, err := c.FileSystemStat(t.Context(), &wire.FileSystemStatParams{
		Path: filepath.Join(dir, "f")})
	if err != nil {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo 1 >f",
		wire.Stdio{}, nil); err != nil {
		t.Error(err)
	}
}

// TestOutputDoesNotFit checks that a step whose output has no space left ends with an error that
// says so, as does the script.
func TestOutputDoesNotFit(t *testing.T) {
	c, dir := performed(t, func() (*os.File, error) {
		return os.OpenFile("/dev/full", os.O_RDWR, 0)
	}, step(t, "a", "echo 1; sleep 100"), step(t, "b", "echo 2 >f"))
	_, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo 1; sleep 100",
		wire.Stdio{}, nil)
	if turnstone.KindOf(err) != turnstone.KindExhausted || !strings.Contains(err.Error(),
		syscall.ENOSPC.Error()) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next step ran: %v", err)
	}
}

// TestTimeout checks that a step's time limit is the conductor's.
func TestTimeout(t *testing.T) {
	// On a busy machine the step may have written nothing yet when the shortest time is over.
	for limit := 3 * time.Second; ; limit *= 5 {
		late := step(t, "a", "echo 1; sleep 1000")
		late.Timeout = limit
		c, _ := performed(t, nil, late, step(t, "b", "echo 2"))
		var out bytes.Buffer
		end, err := c.Execute(t.Context(), wire.ShellExecuteParams{Name: "a"}, "echo 1; sleep 1000",
			wire.Stdio{Out: &out}, nil)
		if err == nil && end.Exit.Killed && out.String() == "1\n" {
			break
		}
		if err != nil || !end.Exit.Killed || out.Len() > 0 || limit > time.Minute {
			t.Fatalf("with a limit of %v: %+v, %v, %q", limit, end, err, out.String())
		}
	}
}

// TestDamaged checks that each prefix of a script is an error, and so are commands that no script
// has.
func TestDamaged(t *testing.T) {
	b := encoded(t, step(t, "a", "echo 1"), call(t, wire.MethodStateFreeze, struct{}{}, ""))
	for n := range len(b) {
		if _, err := Decode(bytes.NewReader(b[:n]), int64(n)); err == nil {
			t.Errorf("%d of %d bytes are a script", n, len(b))
		}
	}
	for _, method := range []string{wire.MethodProcessStart, wire.MethodStateThaw, "", "x"} {
		b := encoded(t, call(t, method, struct{}{}, ""))
		if _, err := Decode(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("%q is in a script", method)
		}
	}
	short := substrate.Call{Method: wire.MethodShellExecute, Data: strings.NewReader("x"), Size: 2}
	if err := Encode(io.Discard, []substrate.Call{short}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("data that is too short: %v", err)
	}
	for _, c := range []substrate.Call{
		call(t, wire.MethodShellExecute, []string{}, "x"),
		call(t, wire.MethodShellExecute, wire.ShellExecuteParams{}, ""),
		call(t, wire.MethodStateSetSession, wire.StateSetSessionParams{}, "x"),
	} {
		if _, err := paramsOf(&c); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s %s: %v", c.Method, c.Params, err)
		}
	}
}

// FuzzDecode checks that no script takes more than its own size, and that what is read is written
// again.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f))
	f.Add(encoded(f, step(f, "a", "echo 1"), call(f, wire.MethodFileSystemUnpack,
		wire.FileSystemUnpackParams{Dest: "/x"}, strings.Repeat("\x00", 1024)),
		call(f, wire.MethodStateFreeze, struct{}{}, "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		calls, err := Decode(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := Encode(&again, calls); err != nil {
			t.Fatal(err)
		}
		twice, err := Decode(bytes.NewReader(again.Bytes()), int64(again.Len()))
		if err != nil || len(twice) != len(calls) {
			t.Fatalf("%d commands, then %d, %v", len(calls), len(twice), err)
		}
		for i := range calls {
			_, _ = paramsOf(&calls[i])
			if calls[i].Size > int64(len(b)) || calls[i].Size != twice[i].Size {
				t.Errorf("%d bytes of %d", calls[i].Size, len(b))
			}
		}
	})
}

var _ agent.Script = (*Conductor)(nil)

// TestCanceled checks that Run ends with its context.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	r := New([]substrate.Call{step(t, "a", "sleep 100")}, func() (*os.File, error) {
		return os.CreateTemp(dir, "output-*")
	})
	a, err := agent.New(agent.Options{RunDir: filepath.Join(dir, "run"), Cwd: dir, Script: r,
		Env: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	cancel()
	if err := r.Run(ctx, a.ServeConn); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
