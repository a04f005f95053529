package ui_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// bound is how long a browser may take for anything: a busy machine is slow.
const bound = 5 * time.Minute

// A browser is Chromium with one page. It is driven over two pipes, without a port.
type browser struct {
	t       testing.TB
	in      *os.File
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan message
	faults  []string // errors of the page, and what its policy refused
	own     string   // the address of the page's server
	others  []string // requests to other addresses
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// open starts a browser with a window of a size, and skips the test if there is none.
func open(t testing.TB, width, height int, scheme string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("TURN_TEST_BROWSER") != "" {
		t.Fatal("chromium is not installed: scripts/setup tests installs it")
	}
	if err != nil {
		t.Skip("chromium is not installed: scripts/setup tests installs it, and make test requires it")
	}
	read, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	// The test's pages are its own, and a container or root gives Chromium no sandbox.
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-extensions", "--remote-debugging-pipe",
		"--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp") // the path of its socket has at most 107 bytes
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = read.Close(), write.Close()
	b := &browser{t: t, in: in, waiting: map[int]chan message{}}
	done := make(chan struct{})
	go func() { defer close(done); b.read(out) }()
	t.Cleanup(func() {
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		_, _ = b.in.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
		select {
		case <-ended:
		case <-time.After(time.Minute):
		}
		cancel()
		<-ended
		_ = b.in.Close()
		<-done
		_ = out.Close()
	})
	var made struct{ TargetID, SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	b.call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	b.session = made.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{
		"name": "prefers-color-scheme", "value": scheme}}}, nil)
	return b
}

// read gives answers to those who wait for them, and notes faults.
func (b *browser) read(out *os.File) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	s.Split(func(data []byte, _ bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		return 0, nil, nil
	})
	for s.Scan() {
		var m message
		if json.Unmarshal(s.Bytes(), &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0 && b.waiting[m.ID] != nil:
			b.waiting[m.ID] <- m
			delete(b.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Page.javascriptDialogOpening",
			m.Method == "Log.entryAdded" && bytes.Contains(m.Params, []byte(`"level":"error"`)):
			b.faults = append(b.faults, string(m.Params))
		case m.Method == "Network.requestWillBeSent":
			b.sent(m.Params)
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, c := range b.waiting {
		close(c)
		delete(b.waiting, id)
	}
}

// sent notes a request that does not go to the page's server. b.mu is held.
func (b *browser) sent(params json.RawMessage) {
	var p struct{ Request struct{ URL string } }
	if err := json.Unmarshal(params, &p); err != nil || b.own == "" ||
		!strings.HasPrefix(p.Request.URL, b.own) && p.Request.URL != "about:blank" {
		b.others = append(b.others, p.Request.URL)
	}
}

func (b *browser) try(method string, params, result any) error {
	c := make(chan message, 1)
	b.mu.Lock()
	b.next++
	n := b.next
	b.waiting[n] = c
	b.mu.Unlock()
	if params == nil {
		params = struct{}{}
	}
	line, err := json.Marshal(map[string]any{"id": n, "method": method, "params": params,
		"sessionId": b.session})
	if b.session == "" {
		line, err = json.Marshal(map[string]any{"id": n, "method": method, "params": params})
	}
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(line, 0)); err != nil {
		return err
	}
	select {
	case m, ok := <-c:
		switch {
		case !ok:
			return errors.New("the browser has ended")
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(bound):
		return fmt.Errorf("%s: no answer", method)
	}
}

func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression, or of its promise.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true,
		"returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %v", expression, r.ExceptionDetails)
	}
	return r.Result.Value
}

// await waits until an expression is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	end := time.Now().Add(bound)
	if t, ok := b.t.(*testing.T); ok { // a test that is ended from outside says nothing about the page
		if at, ok := t.Deadline(); ok && at.Add(-15*time.Second).Before(end) {
			end = at.Add(-15 * time.Second)
		}
	}
	for ; ; time.Sleep(20 * time.Millisecond) {
		if v, _ := b.eval("!!(" + expression + ")").(bool); v {
			return
		}
		if faults := b.noted(); time.Now().After(end) || strings.Contains(strings.Join(faults, ""), "exceptionDetails") {
			b.t.Fatalf("never true: %s\nthe page: %v\nfaults: %v", expression,
				b.eval("document.body.innerText.slice(0, 3000)"), faults)
		}
	}
}

func (b *browser) noted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.faults...)
}

// visit opens an address and waits for an expression.
func (b *browser) visit(address, ready string) {
	b.t.Helper()
	b.mu.Lock()
	b.own, _, _ = strings.Cut(address, "#")
	b.mu.Unlock()
	b.call("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.await("location.href === 'about:blank'")
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.await("location.href !== 'about:blank' && document.readyState === 'complete'")
	b.await(ready)
}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key}
	if len(key) == 1 {
		down["text"] = key
	} else if key == "Enter" {
		down["text"], down["windowsVirtualKeyCode"] = "\r", 13
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// picture writes what the page shows as a PNG into the folder of TURN_TEST_PICTURES, or else among the
// artifacts of the test.
func (b *browser) picture(name string) {
	b.t.Helper()
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := os.Getenv("TURN_TEST_PICTURES")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	path := filepath.Join(dir, name+".png")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, data, 0o644)); err != nil {
		b.t.Fatal(err)
	}
	b.t.Log("picture:", path)
}
