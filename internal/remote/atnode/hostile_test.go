package atnode

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// A liar is a node that answers each command with the same bytes. The methods that it does not have
// panic.
type liar struct {
	wire.SessionServer
	text string
	err  error
}

func (l liar) answer(c *wire.Conn, id wire.StreamID) error {
	out, err := c.Sender(id)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, l.text); err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}
	return out.Close()
}

func (l liar) Log(_ context.Context, c *wire.Conn, p *wire.SessionLogParams) error {
	return l.answer(c, p.Report)
}

func (l liar) ListFiles(_ context.Context, c *wire.Conn, p *wire.SessionListFilesParams) error {
	return l.answer(c, p.Lines)
}

func (l liar) ReadFile(_ context.Context, c *wire.Conn, p *wire.SessionReadFileParams) error {
	return l.answer(c, p.Data)
}

func (l liar) PackFiles(_ context.Context, c *wire.Conn, p *wire.SessionPackFilesParams) error {
	skips, err := c.Sender(p.Skipped)
	if err != nil {
		return err
	}
	if err := skips.Close(); err != nil {
		return err
	}
	return l.answer(c, p.Data)
}

func (l liar) Replay(_ context.Context, c *wire.Conn, p *wire.SessionReplayParams) error {
	return l.answer(c, p.Journal)
}

func (l liar) Current(context.Context, *wire.Conn, *wire.SessionCurrentParams) (
	*wire.SessionCurrentResult, error) {
	raw := json.RawMessage(l.text)
	if !json.Valid(raw) {
		raw = json.RawMessage(`[]`)
	}
	return &wire.SessionCurrentResult{Session: raw}, l.err
}

func dial(t *testing.T, l liar) *Executor {
	t.Helper()
	x := &Executor{Dial: func(context.Context) (*wire.Client, error) {
		d := wire.NewDispatcher()
		wire.RegisterSession(d, l)
		near, far := net.Pipe()
		server := wire.NewConn(far, wire.Options{Dispatcher: d})
		t.Cleanup(func() { _ = server.Close(); server.Wait() })
		return wire.NewClient(near), nil
	}}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestLies gets answers that no node of ours gives: each is an error in time, and writes nothing
// outside of where it may.
func TestLies(t *testing.T) {
	failed := turnstone.Errorf("session.resolve", turnstone.KindNotFound, "x", "there is none").
		WithHint("look")
	for name, l := range map[string]liar{"nothing": {}, "no JSON": {text: "{"},
		"another type": {text: "[1]\n"}, "deep": {text: strings.Repeat("[", 100_000)},
		"a long line": {text: strings.Repeat(" ", 1<<20)}, "an error in the middle": {text: `{"a":`, err: failed},
		"an odd journal":   {text: `{"started":3}` + "\n"},
		"an empty journal": {text: `{"end":{}}` + "\n"}} {
		t.Run(name, func(t *testing.T) {
			x := dial(t, l)
			ctx := t.Context()
			_, log := x.Log(ctx, "s", 0)
			_, replay := x.Replay(ctx, "s", executor.ReplayOptions{}, nil)
			_, current := x.CurrentSession(ctx, "s")
			dest := t.TempDir()
			all := map[string]error{"Replay": replay, "CopyOut": x.CopyOut(ctx, "s", "/", dest+"/", nil)}
			if !json.Valid([]byte(l.text)) || name == "another type" {
				all["Log"], all["CurrentSession"] = log, current
			}
			if l.err != nil || name == "no JSON" {
				all["ListFiles"] = x.ListFiles(ctx, "s", "/", true, func(turnstone.FileInfo) error { return nil })
			}
			for method, err := range all {
				if err == nil && (name != "nothing" || method != "CopyOut") { // no files
					t.Errorf("%s: no error", method)
				} else if l.err != nil && method != "CopyOut" && turnstone.KindOf(err) != turnstone.KindNotFound {
					t.Errorf("%s: %v", method, err)
				}
			}
			if left, err := os.ReadDir(dest); err != nil || len(left) != 0 {
				t.Errorf("%v %v", left, err)
			}
			f, err := x.OpenFile(ctx, "s", "/a")
			if err == nil {
				_, err = io.ReadAll(f)
				_ = f.Close()
			}
			if (err != nil) != (l.err != nil) {
				t.Errorf("OpenFile: %v", err)
			}
		})
	}
}

// TestCopyOutBeside: a node that sends another file than was asked for replaces no file of the user.
func TestCopyOutBeside(t *testing.T) {
	for asked, names := range map[string]map[string]bool{
		"/a/got": {"got": true, "Makefile": false, ".git": false},
		"got":    {"got": true, "root": false},
		"/":      {"root": true, "Makefile": false},
		".":      {"root": true, "Makefile": false},
		"/a/..":  {"root": true, "a": false},
	} {
		for name, ok := range names {
			dest := t.TempDir()
			own := filepath.Join(dest, "Makefile")
			if err := os.WriteFile(own, []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			w := tar.NewWriter(&b)
			_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644})
			_, _ = w.Write([]byte("x"))
			_ = w.Close()
			err := dial(t, liar{text: b.String()}).CopyOut(t.Context(), "s", asked, dest, nil)
			if (err == nil) != ok || !ok && turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%s, sent %s: %v", asked, name, err)
			}
			text, err := os.ReadFile(own)
			left, _ := os.ReadDir(dest)
			if string(text) != "mine" || (len(left) == 2) != ok {
				t.Errorf("%s, sent %s: %q %v, %v", asked, name, text, err, left)
			}
		}
	}
}

// TestGone names the node where a connection is lost, and connects again for the next command.
func TestGone(t *testing.T) {
	x := dial(t, liar{text: "{}"})
	if _, err := x.Log(t.Context(), "s", 0); err != nil {
		t.Fatal(err)
	}
	_ = x.client.Close()
	<-x.client.Done()
	if _, err := x.Log(t.Context(), "s", 0); err != nil {
		t.Fatalf("after a lost connection: %v", err)
	}
	far := &Executor{Hint: func(hint string) string { return "the operator: " + hint }}
	damaged := far.ofNode(turnstone.NewError("store.read", turnstone.KindIntegrity, "o", io.EOF).
		WithHint("turn fsck"))
	if turnstone.HintOf(damaged) != "the operator: turn fsck" ||
		turnstone.KindOf(damaged) != turnstone.KindIntegrity {
		t.Errorf("%v: %s", damaged, turnstone.HintOf(damaged))
	}
	if err := far.ofNode(turnstone.NewError("session.log", turnstone.KindDead, "x", io.EOF)); turnstone.HintOf(
		err) != "" {
		t.Error(turnstone.HintOf(err))
	}
	if err := new(Executor).ofNode(turnstone.NewError("session.log", turnstone.KindDead, "connection to the sandbox",
		io.EOF)); !strings.Contains(err.Error(), "node") || turnstone.HintOf(err) != "try again" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Log(ctx, "s", 0); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Error(err)
	}
	_ = x.Close()
	if _, err := x.Log(t.Context(), "s", 0); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Error(err)
	}
}

// TestSpecItems sends of a spec's folder only what the spec names.
func TestSpecItems(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	for name, text := range map[string]string{"template.toml": "[[files]]\nsource = \"a/b\"\n" +
		"[[files]]\nsource = \"../outside\"\n[[files]]\nsource = \"/etc/passwd\"\n[[files]]\ncontent = \"x\"\n",
		"a/b": "b", "secret": "s", "../outside": "o"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name, items, lock, err := specItems(dir)
	if err != nil || name != "mine/template.toml" || lock != filepath.Join(dir, "template.lock") {
		t.Fatal(name, lock, err)
	}
	var names []string
	for _, i := range items {
		names = append(names, i.Name)
	}
	if got := strings.Join(names, " "); got != "mine/template.toml mine/a/b" {
		t.Error(got)
	}
	for _, bad := range []string{filepath.Join(dir, "none"), filepath.Dir(dir)} {
		if _, _, _, err := specItems(bad); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
