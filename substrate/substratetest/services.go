package substratetest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// testSignals sends signals to processes that have left the session and the parent.
func testSignals(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out lines
	ended := make(chan error, 1)
	go func() {
		_, err := client.Start(ctx, wire.ProcessStartParams{ProcessID: "tree",
			Argv: []string{"bash", "-c",
				`trap 'echo main; exit 3' TERM; (setsid -f bash -c 'trap "echo away; exit" ` +
					`TERM; echo up; while :; do sleep 0.2; done'); while :; do sleep 0.2; done`}},
			wire.Stdio{Out: &out})
		ended <- err
	}()
	out.await(t, ctx, "up")
	if err := client.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: "tree",
		Signal: "TERM"}); err != nil {
		t.Fatal(err)
	}
	out.await(t, ctx, "main")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want(t, client, "sleep 1; pgrep -f 'echo awa[y]' | wc -l", "0\n")
}

// lines is a writer whose text can be waited for.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) await(t *testing.T, ctx context.Context, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		all := l.all.String()
		l.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no %q in %q", text, all)
		case <-time.After(20 * time.Millisecond): //wait: the loop polls
		}
	}
}

func testTerminal(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out bytes.Buffer
	end, err := client.Start(ctx, wire.ProcessStartParams{User: "nobody", Cwd: "/tmp",
		Terminal: &wire.ProcessTerminal{Columns: 90, Rows: 33},
		Argv:     []string{"bash", "-c", "stty size; id -un; tty; echo >/dev/tty ok; exit 4"}},
		wire.Stdio{Out: &out})
	if text := out.String(); err != nil || end.Exit.ExitCode != 4 ||
		!strings.HasPrefix(text, "33 90\r\nnobody\r\n/dev/pts/") ||
		!strings.HasSuffix(text, "ok\r\n") {
		t.Errorf("%q %+v %v", text, end, err)
	}
}

func testFiles(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := client.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: "/etc/motd",
		Data: []byte("hello\n"), Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: "/workspace/a/b",
		Parents: true}); err != nil {
		t.Fatal(err)
	}
	want(t, client, "cat /etc/motd; stat -c '%a %U' /etc/motd; stat -c %s /workspace/a/b",
		"hello\n600 root\n0\n")
	if err := client.FileSystemMove(ctx, &wire.FileSystemMoveParams{From: "/workspace/a/b",
		To: "/workspace/c"}); err != nil {
		t.Error(err)
	}
	err := client.FileSystemMove(ctx, &wire.FileSystemMoveParams{From: "/workspace/c",
		To: "/etc/motd"})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a move over a file: %v", err)
	}
	read, err := client.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: "/proc/version"})
	if err != nil || !read.Eof || !strings.HasPrefix(string(read.Data), "Linux") {
		t.Errorf("%+v %v", read, err)
	}
	// The magic links of /proc lead to the agent's own open files.
	if read, err := client.FileSystemRead(ctx,
		&wire.FileSystemReadParams{Path: "/proc/self/exe"}); err == nil {
		t.Errorf("the agent's program was read: %d bytes", len(read.Data))
	}
	if err := client.FileSystemRemove(ctx, &wire.FileSystemRemoveParams{Path: "/usr/share/doc",
		Recursive: true}); err != nil {
		t.Errorf("a folder of the template: %v", err)
	}
	want(t, client, "ls -d /usr/share/doc /workspace/c 2>/dev/null; true", "/workspace/c\n")
}

func testRecords(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out bytes.Buffer
	var mu sync.Mutex
	var records []wire.ShellRecord
	end, err := client.Execute(ctx, wire.ShellExecuteParams{Name: "r"},
		"echo a | tr a b\ncd /tmp\nfalse\n",
		wire.Stdio{Out: &out, Err: io.Discard}, func(some []wire.ShellRecord) {
			mu.Lock()
			defer mu.Unlock()
			records = append(records, some...)
		})
	if err != nil || out.String() != "b\n" || end.Exit.ExitCode != 1 || end.Cwd != "/tmp" ||
		end.StateLost || end.Untraced != "" {
		t.Fatalf("%q %+v %v", out.String(), end, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if int64(len(records)) != end.Count || end.Count < 4 {
		t.Errorf("%d records of %d commands", len(records), end.Count)
	}
	for _, r := range records {
		if r.Text == "false" && (r.ExitCode == nil || *r.ExitCode != 1 || r.Span == nil ||
			r.Span.Line != 3) {
			t.Errorf("%+v", r)
		}
	}
}
