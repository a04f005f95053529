package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"
	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/cdp/cdptest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// reap makes a script remove all its sandboxes at its end, also after a failure.
func reap(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: reap")
	}
	s := sandboxes.NewStore(ts.MkAbs(ts.Getenv("TURN_HOME")))
	ts.Defer(func() {
		all, err := s.List(context.Background())
		ts.Check(err)
		for _, i := range all {
			ts.Check(s.Remove(context.Background(), i.ID))
		}
	})
}

// served returns the address that "turn sandbox serve" has printed into a file.
func served(ts *testscript.TestScript, file string) *url.URL {
	b, err := os.ReadFile(ts.MkAbs(file))
	ts.Check(err)
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "http://") {
			u, err := url.Parse(strings.TrimSpace(line))
			ts.Check(err)
			return u
		}
	}
	ts.Fatalf("%s holds no address: %s", file, b)
	return nil
}

func tokenOf(u *url.URL) string { return strings.Split(u.Path, "/")[1] }

// ask requests a page of a server and checks the status: "ask 401 FILE PATH [NAME=VALUE…]", where
// FILE is the server's output, the pairs are headers, and TOKEN stands for the token. The response
// is written to the file out.
func ask(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: ask STATUS FILE PATH [HEADER=VALUE…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	base := served(ts, args[1])
	fill := func(s string) string { return strings.ReplaceAll(s, "TOKEN", tokenOf(base)) }
	req, err := http.NewRequest(http.MethodGet, "http://"+base.Host+fill(args[2]), nil)
	ts.Check(err)
	for _, h := range args[3:] {
		name, value, _ := strings.Cut(fill(h), "=")
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value + ":" + base.Port()
		}
	}
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	b, err := io.ReadAll(res.Body)
	ts.Check(err)
	ts.Check(res.Body.Close())
	ts.Check(os.WriteFile(ts.MkAbs("out"), b, 0o600))
	if res.StatusCode != want {
		ts.Fatalf("status %d, want %d: %s", res.StatusCode, want, last(b))
	}
}

// stock runs the stock client against a server and two sandboxes, whose IDs are in files: "stock
// FILE FILE FILE".
func stock(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: stock FILE FILE FILE")
	}
	script, err := filepath.Abs("../../internal/cdp/testdata/client.js")
	ts.Check(err)
	base := served(ts, args[0])
	out, err := cdptest.Client(context.Background(), script, base.Port(), tokenOf(base),
		strings.TrimSpace(ts.ReadFile(args[1])), strings.TrimSpace(ts.ReadFile(args[2])))
	ts.Logf("%s", out)
	ts.Check(err)
}

// devtools runs a command by way of "turn sandbox serve": "devtools FILE IDFILE PROGRAM [ARG…]". FILE is
// the server's output, and the command's output goes to the file out.
func devtools(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: devtools FILE IDFILE PROGRAM [ARG…]")
	}
	base := served(ts, args[0])
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, early, _, err := ws.Dial(ctx, "ws://"+base.Host+"/"+tokenOf(base)+"/devtools/page/"+
		strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
	if early != nil {
		ts.Fatalf("the sandbox speaks first")
	}
	var mu sync.Mutex
	var out bytes.Buffer
	ended := make(chan struct{})
	c := wire.NewConn(conn, wire.Options{Masked: true, OnEvent: func(e wire.Event) {
		v, err := wire.DecodeEvent(e)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch v := v.(type) {
		case *wire.ProcessOutputEvent:
			out.Write(v.Data)
		case *wire.ProcessExitedEvent:
			close(ended)
		}
	}})
	defer func() { _ = c.Close() }()
	_, err = c.ProcessStart(ctx, &wire.ProcessStartParams{Argv: args[2:]})
	ts.Check(err)
	select {
	case <-ended:
	case <-ctx.Done():
		ts.Fatalf("the command does not end")
	}
	mu.Lock()
	defer mu.Unlock()
	ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o600))
}

// send posts a file as JSON to a server: "send STATUS FILE PATH BODY"; see ask.
func send(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: send STATUS FILE PATH BODY")
	}
	base := served(ts, args[1])
	to := "http://" + base.Host + strings.ReplaceAll(args[2], "TOKEN", tokenOf(base))
	res, err := http.Post(to, "application/json", strings.NewReader(ts.ReadFile(args[3])))
	ts.Check(err)
	b, err := io.ReadAll(res.Body)
	ts.Check(err)
	ts.Check(res.Body.Close())
	ts.Check(os.WriteFile(ts.MkAbs("out"), b, 0o600))
	if strconv.Itoa(res.StatusCode) != args[0] {
		ts.Fatalf("status %d, want %s: %s", res.StatusCode, args[0], last(b))
	}
}
