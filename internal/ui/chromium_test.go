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

// A chromium is a running Chromium. It is driven over two pipes, without a port.
type chromium struct {
	in  *os.File
	end func()

	mu      sync.Mutex
	next    int
	waiting map[int]chan message
	pages   map[string]*browser // by session
}

// A browser is a page that shares nothing with other pages but the process.
type browser struct {
	*chromium
	t       testing.TB
	session string

	// What mu protects, too:
	faults []string // errors of the page, and what its policy refused
	own    string   // the address of the page's server
	others []string // requests to other addresses
}

type message struct {
	ID        int             `json:"id"`
	SessionID string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// endShared ends the Chromium of all tests, once one of them has started it.
var endShared = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	endShared()
	os.Exit(code)
}

// shared returns the Chromium of all tests: its start costs more than most of them.
var shared = sync.OnceValues(func() (*chromium, error) {
	dir, err := os.MkdirTemp("", "turn-chromium-*")
	if err != nil {
		return nil, err
	}
	c, err := startChromium(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	endShared = func() { c.end(); _ = os.RemoveAll(dir) }
	return c, nil
})

// startChromium starts a Chromium that keeps its files in a folder.
func startChromium(profile string) (*chromium, error) {
	read, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	// The test's pages are its own, and a container or root gives Chromium no sandbox.
	cmd := exec.CommandContext(ctx, "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-extensions", "--remote-debugging-pipe",
		"--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp") // the path of its socket has at most 107 bytes
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	_, _ = read.Close(), write.Close()
	c := &chromium{in: in, waiting: map[int]chan message{}, pages: map[string]*browser{}}
	done := make(chan struct{})
	go func() { defer close(done); c.read(out) }()
	c.end = func() {
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		_, _ = c.in.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
		select {
		case <-ended:
		case <-time.After(time.Minute):
		}
		cancel()
		<-ended
		_ = c.in.Close()
		<-done
		_ = out.Close()
	}
	return c, nil
}

// open opens a page in a window of a size, and skips the test if there is no browser. A benchmark has a browser of
// its own, because it measures a first visit.
func open(t testing.TB, width, height int, scheme string) *browser {
	t.Helper()
	_, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("TURN_TEST_BROWSER") != "" {
		t.Fatal("chromium is not installed: scripts/setup tests installs it")
	}
	if err != nil {
		t.Skip("chromium is not installed: scripts/setup tests installs it, and make test requires it")
	}
	b := &browser{t: t}
	if _, ok := t.(*testing.B); ok {
		if b.chromium, err = startChromium(filepath.Join(t.TempDir(), "profile")); err == nil {
			t.Cleanup(b.end)
		}
	} else {
		b.chromium, err = shared()
	}
	if err != nil {
		t.Fatal(err)
	}
	b.attach()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{
		"name": "prefers-color-scheme", "value": scheme}}}, nil)
	return b
}

// attach makes the page, with a cache and a storage of its own, until the test ends.
func (b *browser) attach() {
	var made struct{ BrowserContextID, TargetID, SessionID string }
	b.call("Target.createBrowserContext", nil, &made)
	b.call("Target.createTarget", map[string]any{"url": "about:blank",
		"browserContextId": made.BrowserContextID}, &made)
	b.call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	b.mu.Lock()
	b.session, b.pages[made.SessionID] = made.SessionID, b
	b.mu.Unlock()
	b.t.Cleanup(func() {
		b.mu.Lock()
		delete(b.pages, b.session)
		b.mu.Unlock()
		b.session = ""
		if err := b.try("Target.disposeBrowserContext", map[string]any{
			"browserContextId": made.BrowserContextID}, nil); err != nil {
			b.t.Error(err)
		}
	})
}

// read gives answers to those who wait for them, and notes faults.
func (c *chromium) read(out *os.File) {
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
		c.mu.Lock()
		if c.waiting[m.ID] != nil {
			c.waiting[m.ID] <- m
			delete(c.waiting, m.ID)
		} else if b := c.pages[m.SessionID]; b != nil {
			b.note(m)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

// note notes an event of the page. b.mu is held.
func (b *browser) note(m message) {
	switch {
	case m.Method == "Runtime.exceptionThrown", m.Method == "Page.javascriptDialogOpening",
		m.Method == "Log.entryAdded" && bytes.Contains(m.Params, []byte(`"level":"error"`)):
		b.faults = append(b.faults, string(m.Params))
	case m.Method == "Network.requestWillBeSent":
		b.sent(m.Params)
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
