package templatebuild

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// A machine is an agent in this process.
type machine struct {
	net.Conn
	done chan struct{}
	once sync.Once
}

func (m *machine) ID() turnstone.SandboxID   { return "sb_build" }
func (m *machine) Agent() io.ReadWriteCloser { return m.Conn }
func (m *machine) Scratch() string           { return "scratch" }
func (m *machine) Done() <-chan struct{}     { return m.done }
func (m *machine) Err() error                { return nil }
func (m *machine) Close() error {
	m.once.Do(func() { _ = m.Conn.Close(); close(m.done) })
	return nil
}

// builder returns a Builder whose sandbox is an agent in this process.
func builder(t *testing.T) Builder {
	t.Helper()
	return Builder{Start: func(context.Context, template.LayerRequest) (*sandbox.Sandbox, collect.Bounds, error) {
		host, guest := net.Pipe()
		dir := t.TempDir()
		a, err := agent.New(agent.Options{RunDir: dir, Cwd: dir})
		if err != nil {
			return nil, collect.Bounds{}, err
		}
		served := make(chan struct{})
		go func() { _ = a.Serve(context.Background(), guest); close(served) }()
		t.Cleanup(func() {
			<-served
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		l := sandbox.New(&statedir.Dir{Root: t.TempDir()})
		s, err := l.Connect(&machine{Conn: host, done: make(chan struct{})}, &turnstone.Template{})
		return s, collect.Bounds{}, err
	}}
}

// TestFailedStep runs the steps in order, and ends the build with the error that the first failed
// step creates from its exit code and the end of its output. Nothing is committed.
func TestFailedStep(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	var said []string
	var listed string
	broken := errors.New("broken")
	failed := func(exit int, tail []byte) error {
		if exit != 7 || string(tail) != "why\n" {
			t.Errorf("exit %d, %q", exit, tail)
		}
		return broken
	}
	req := template.LayerRequest{Name: "x", Env: []string{"DIR=" + dir}, Log: &log, Say: func(what string) { said = append(said, what) },
		Files: []template.File{{Path: filepath.Join(dir, "new/file"), Mode: 0o640,
			Content: []byte("content")}},
		Steps: []template.LayerStep{
			{Name: "put"},
			{Name: "list", Script: `stat -c %a "$DIR/new/file"; cat "$DIR/new/file"`,
				Done: func(out []byte) error { listed = string(out); return nil }},
			{Name: "fail", Script: "echo why; exit 7", Failed: failed},
			{Name: "never", Script: `touch "$DIR/never"`},
		}}
	err := builder(t).Build(t.Context(), req, func(turnstone.TemplateLayer) error {
		t.Error("a layer was committed")
		return nil
	})
	if !errors.Is(err, broken) || listed != "640\ncontent" ||
		strings.Join(said, " ") != "put list fail" {
		t.Errorf("%v, listed %q, said %q", err, listed, said)
	}
	if _, err := os.Stat(filepath.Join(dir, "never")); !os.IsNotExist(err) {
		t.Error("a step ran after one that failed")
	}
	if got := log.String(); got != "# put\n# list\n# fail\nwhy\n" {
		t.Errorf("the log says %q", got)
	}
}

// TestCanceledBuild names the template whose build its caller has canceled.
func TestCanceledBuild(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	req := template.LayerRequest{Name: "x", Log: writer(func() { cancel() }), Say: func(string) {},
		Steps: []template.LayerStep{{Name: "wait", Script: "echo begun; sleep 600"}}}
	err := builder(t).Build(ctx, req, nil)
	if turnstone.KindOf(err) != turnstone.KindCanceled ||
		!strings.Contains(err.Error(), "while template x was built") {
		t.Error(err)
	}
}

// A writer is called when the steps print.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	if string(p) == "begun\n" {
		w()
	}
	return len(p), nil
}

// TestOutputIsBounded checks that a hostile package's output occupies no more than the bounds.
func TestOutputIsBounded(t *testing.T) {
	last, first := &tail{}, &head{}
	for i := range 100 {
		p := bytes.Repeat([]byte{byte('a' + i%26)}, 100<<10)
		for _, w := range []io.Writer{last, first, lenient{failing{}}} {
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	if len(last.b) != 32<<10 || last.b[0] != byte('a'+99%26) || len(first.b) != maxListing ||
		first.b[0] != 'a' {
		t.Errorf("%d bytes of the end, %d of the beginning", len(last.b), len(first.b))
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
