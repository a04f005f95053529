package client_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/client"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/testhome"
	"turnstone.dev/turnstone/sandboxes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// scene is a state directory with a server that the tests' clients start.
type scene struct{ dir, program string }

// newScene returns a new state directory that shares templates and snapshots with other tests. What is
// left in it at the test's end is removed.
func newScene(t *testing.T) scene {
	t.Helper()
	program, err := filepath.Abs("../bin/turn")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{program, filepath.Join(filepath.Dir(program), "turn-server")} {
		if _, err := os.Stat(name); err != nil {
			t.Skip("make build has not built " + name)
		}
	}
	dir, err := os.MkdirTemp("", "client") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	shared := testhome.Dir(t)
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		if err := os.MkdirAll(filepath.Join(shared, part), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(shared, part), filepath.Join(dir, part)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TURN_HOST", "")
	t.Setenv("TURN_TOKEN", "")
	t.Setenv("TURN_BACKGROUND", "off")
	if os.Getenv("TURN_RUNSC") == "" {
		t.Setenv("TURN_RUNSC", filepath.Join(filepath.Dir(program), "runsc"))
	}
	t.Setenv("TURN_SERVER_LIMITS_UNUSED", "1s")
	t.Cleanup(func() { clean(t, dir) })
	return scene{dir, program}
}

// clean ends the sandboxes of a state directory, waits until its server has ended by itself, and removes
// the directory.
func clean(t *testing.T, dir string) {
	store := sandboxes.NewStore(dir)
	all, err := store.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, i := range all {
		if err := store.Discard(context.Background(), i.ID); err != nil {
			t.Error(err)
		}
	}
	socket := filepath.Join(dir, "server.sock")
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Lstat(socket); err != nil {
			break
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(dir, "server", "local.log"))
		t.Logf("the server's log:\n%s", log)
	}
	// its process writes its last files after it has closed the socket
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if err := os.RemoveAll(dir); err == nil {
			if _, err := os.Lstat(dir); err != nil {
				return
			}
		}
		if time.Now().After(until) {
			t.Errorf("%s stays", dir)
			return
		}
	}
}

func (s scene) open(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	o.Dir, o.Program = s.dir, s.program
	c, err := client.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%s; hint: %s)", err, turnstone.KindOf(err), turnstone.HintOf(err))
	}
}

// TestTogether: several clients that start at once share one server.
func TestTogether(t *testing.T) {
	s := newScene(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			c, err := client.New(t.Context(), client.Options{Dir: s.dir, Program: s.program})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Sandboxes(t.Context()); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestNoProgram: what cannot be started says why.
func TestNoProgram(t *testing.T) {
	s := newScene(t)
	_, err := client.New(t.Context(), client.Options{Dir: s.dir, Program: "/bin/false"})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	_, err = client.New(t.Context(), client.Options{Dir: s.dir, Program: s.program, Session: "a",
		ContextID: "b"})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
}

// TestSandbox does what programs do with a sandbox.
func TestSandbox(t *testing.T) {
	s := newScene(t)
	c := s.open(t, client.Options{})
	ctx := t.Context()
	sb, err := c.Sandbox(ctx, client.SandboxOptions{Name: "box", Live: true,
		Env: map[string]string{"GREETING": "hello"}})
	check(t, err)
	t.Run("exec", func(t *testing.T) { testExec(t, sb) })
	t.Run("process", func(t *testing.T) { testProcess(t, sb) })
	t.Run("files", func(t *testing.T) { testFiles(t, sb) })
	t.Run("ports", func(t *testing.T) { testPorts(t, sb) })
	t.Run("machine", func(t *testing.T) { testMachine(t, sb) })
	check(t, sb.Close(ctx))
	if sb.Turn() == nil || sb.Turn().Session != c.SessionName() {
		t.Errorf("nothing was kept: %+v", sb.Turn())
	}
	again, err := sb.Clone(ctx)
	check(t, err)
	b, err := again.Files().Read(ctx, "kept.txt")
	if check(t, err); string(b) != "kept" {
		t.Errorf("%q", b)
	}
	check(t, again.Discard(ctx))
}

func testExec(t *testing.T, sb *client.Sandbox) {
	ctx := t.Context()
	r, err := sb.Exec(ctx, []string{"bash", "-c", "echo $GREETING $MORE; pwd; cat; echo err >&2; exit 3"},
		client.Env(map[string]string{"MORE": "more"}), client.Cwd("/tmp"),
		client.Stdin(strings.NewReader("input\n")))
	check(t, err)
	if r.ExitCode != 3 || r.Stdout != "hello more\n/tmp\ninput\n" || r.Stderr != "err\n" ||
		r.Duration <= 0 || r.Language != "bash" || len(r.Commands) != 5 ||
		r.Commands[1].Text != "pwd" || r.Commands[1].Span.Start != 22 {
		t.Errorf("%+v", r)
	}
	if r, err = sb.Exec(ctx, []string{"id", "-un"}, client.User("nobody")); err != nil ||
		r.Stdout != "nobody\n" {
		t.Errorf("%+v, %v", r, err)
	}
	var direct bytes.Buffer
	if r, err = sb.Exec(ctx, []string{"seq", "3"}, client.Stdout(&direct)); err != nil ||
		direct.String() != "1\n2\n3\n" || r.Stdout != "" {
		t.Errorf("%q, %+v, %v", direct.String(), r, err)
	}
	_, err = sb.Exec(ctx, []string{"sleep", "600"}, client.Timeout(200*time.Millisecond))
	if turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("%v", err)
	}
	if _, err = sb.Exec(ctx, []string{"no-such-program"}); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v (%s)", err, turnstone.KindOf(err))
	}
	r, err = sb.Shell(ctx, "export A=1\ncd /tmp\npython3 -c 'print(2)' 2>/dev/null | cat\nfalse")
	check(t, err)
	if r.ExitCode != 1 || r.Cwd != "/tmp" || len(r.Commands) < 4 || r.Commands[0].Text != "export A=1" ||
		r.Commands[0].Span.Line != 1 || r.Commands[0].ExitCode == nil {
		t.Errorf("%+v", r)
	}
	if r, err = sb.Shell(ctx, "echo $A; pwd"); err != nil || r.Stdout != "1\n/tmp\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

func testProcess(t *testing.T, sb *client.Sandbox) {
	ctx := t.Context()
	p, err := sb.Start(ctx, []string{"cat"})
	check(t, err)
	answer := make([]byte, 5)
	_, err = io.WriteString(p.Stdin, "hello")
	check(t, err)
	_, err = io.ReadFull(p.Stdout, answer) // while it runs
	if check(t, err); string(answer) != "hello" {
		t.Errorf("%q", answer)
	}
	check(t, p.Stdin.Close())
	rest, err := io.ReadAll(p.Stdout)
	r, failed := p.Wait()
	if check(t, err); failed != nil || r.ExitCode != 0 || len(rest) > 0 {
		t.Errorf("%q, %+v, %v", rest, r, failed)
	}
	p, err = sb.Start(ctx, []string{"bash", "-c", "tty; read x; stty size; echo got $x"},
		client.Terminal(90, 30), client.Stdin(strings.NewReader("typed\n")))
	check(t, err)
	text, err := io.ReadAll(p.Stdout)
	_, failed = p.Wait()
	if check(t, err); failed != nil || !strings.Contains(string(text), "/dev/pts/") ||
		!strings.Contains(string(text), "30 90") || !strings.Contains(string(text), "got typed") {
		t.Errorf("%q, %v", text, failed)
	}
	p, err = sb.Start(ctx, []string{"sleep", "600"})
	check(t, err)
	check(t, p.Signal(ctx, "TERM"))
	if r, err = p.Wait(); err != nil || r.Signal != "SIGTERM" || r.ExitCode != 143 {
		t.Errorf("%+v, %v", r, err)
	}
	p, err = sb.Start(ctx, []string{"sleep", "600"})
	check(t, err)
	check(t, p.Kill())
	name, err := sb.Background(ctx, []string{"bash", "-c", "echo there; exit 4"})
	check(t, err)
	if r, err = sb.Attach(ctx, name); err != nil || r.Stdout != "there\n" || r.ExitCode != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	all, err := sb.Processes(ctx)
	if check(t, err); len(all) == 0 {
		t.Error("there is no process")
	}
}

func testFiles(t *testing.T, sb *client.Sandbox) {
	ctx, f := t.Context(), sb.Files()
	check(t, f.Mkdir(ctx, "folder/sub"))
	w, err := f.Watch(ctx, "folder", true)
	check(t, err)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	check(t, f.Write(ctx, "folder/big", big))
	if c := <-w.C; !strings.HasPrefix(c.Path, "/") || c.Kind == "" {
		t.Errorf("%+v", c)
	}
	check(t, w.Close())
	check(t, w.Close())
	got, err := f.Read(ctx, "folder/big")
	if check(t, err); !bytes.Equal(got, big) {
		t.Errorf("%d bytes", len(got))
	}
	check(t, f.Move(ctx, "folder/big", "folder/moved"))
	info, err := f.Stat(ctx, "folder/moved")
	if check(t, err); info.Size != int64(len(big)) || info.Type != "file" || info.Modified.IsZero() {
		t.Errorf("%+v", info)
	}
	all, err := f.List(ctx, "folder")
	if check(t, err); len(all) != 2 || all[0].Name != "moved" || all[1].Type != "directory" {
		t.Errorf("%+v", all)
	}
	here := t.TempDir()
	check(t, f.Download(ctx, "folder", filepath.Join(here, "down"), nil))
	check(t, f.Upload(ctx, filepath.Join(here, "down"), "up"))
	if all, err = f.List(ctx, "up"); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	check(t, f.Remove(ctx, "folder"))
	if _, err = f.Stat(ctx, "folder"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
}

func testPorts(t *testing.T, sb *client.Sandbox) {
	ctx := t.Context()
	_, err := sb.Background(ctx, []string{"bash", "-c", "exec 3<>/dev/null; while :; do sleep 1; done"})
	check(t, err)
	e, err := sb.Expose(ctx, 8000)
	check(t, err)
	c, err := net.Dial("tcp", e.Address)
	check(t, err)
	if b, err := io.ReadAll(c); len(b) > 0 { // nobody listens in the sandbox
		t.Errorf("%q, %v", b, err)
	}
	_ = c.Close()
	check(t, e.Close())
	if _, err := sb.Expose(ctx, 0); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
}

func testMachine(t *testing.T, sb *client.Sandbox) {
	ctx := t.Context()
	check(t, sb.Files().Write(ctx, "kept.txt", []byte("kept")))
	check(t, sb.Pause(ctx))
	i, err := sb.Info(ctx)
	if check(t, err); !i.Paused {
		t.Errorf("%+v", i)
	}
	check(t, sb.Resume(ctx))
	clones, err := sb.Fork(ctx, 2)
	check(t, err)
	for _, one := range clones {
		b, err := one.Files().Read(ctx, "kept.txt")
		if check(t, err); string(b) != "kept" {
			t.Errorf("%q", b)
		}
		check(t, one.Discard(ctx))
	}
	if r, err := sb.Exec(ctx, []string{"cat", "kept.txt"}); err != nil || r.Stdout != "kept" {
		t.Errorf("%+v, %v", r, err)
	}
}

const counting = "# Count\n\n```bash name=count\nn=$(cat n 2>/dev/null || echo 0)\necho $((n + 1)) > n\ncat n\n```\n"

// TestTurns runs turns of a session, and works with their history.
func TestTurns(t *testing.T) {
	s := newScene(t)
	c := s.open(t, client.Options{Session: "counting"})
	ctx := t.Context()
	for _, want := range []string{"1\n", "2\n"} {
		r, err := c.Run(ctx, counting, client.RunOptions{})
		check(t, err)
		if !r.Passed || len(r.Steps) != 1 || r.Steps[0].Stdout != want || r.Session != "counting" ||
			len(r.Steps[0].Commands) == 0 || !strings.Contains(r.Markdown, "turn:") {
			t.Fatalf("%+v", r.TurnReport)
		}
		v, err := c.VerifyReceipt(ctx, r.Markdown)
		if check(t, err); !v.OK {
			t.Errorf("%+v", v)
		}
	}
	if _, err := c.Run(ctx, "---\nimgae: base\n---\n", client.RunOptions{}); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
	h := c.Session("")
	g, err := h.Log(ctx, 0)
	if check(t, err); len(g.Turns) != 2 || g.Session.Name != "counting" {
		t.Errorf("%+v", g)
	}
	_, err = h.Fork(ctx, "1", "other")
	check(t, err)
	r, err := c.Run(ctx, "```bash\necho x > x\n```\n", client.RunOptions{Session: "counting", Branch: "other"})
	if check(t, err); !r.Passed || r.Branch != "other" {
		t.Errorf("%+v", r.TurnReport)
	}
	d, err := h.Diff(ctx, "1", "other")
	if check(t, err); len(d.Files) == 0 {
		t.Errorf("%+v", d)
	}
	m, err := h.Merge(ctx, "other", "", client.MergeOptions{})
	if check(t, err); m.Branch != "main" {
		t.Errorf("%+v", m)
	}
	p, err := h.Replay(ctx, "2", nil)
	if check(t, err); !p.Same {
		t.Errorf("%+v", p)
	}
	both, err := h.Compare(ctx, "1", "2")
	if check(t, err); len(both.Turns) != 2 {
		t.Errorf("%+v", both)
	}
	_, err = h.Tag(ctx, "2", "two")
	check(t, err)
	var exported bytes.Buffer
	check(t, h.Export(ctx, &exported))
	v, err := h.Verify(ctx)
	if check(t, err); !v.OK || exported.Len() == 0 {
		t.Errorf("%+v", v)
	}
	if v, err = c.Verify(ctx, "counting@two"); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
	u, err := c.Usage(ctx, "", time.Time{})
	if check(t, err); u.Turns < 3 {
		t.Errorf("%+v", u)
	}
}
