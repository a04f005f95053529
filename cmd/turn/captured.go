package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A commandReport is what turn exec and turn sandbox exec print when the command has ended.
type commandReport struct {
	Argv       []string             `json:"argv"`
	ExitCode   int                  `json:"exit_code"` // 128 plus the signal's number when a signal ended it; turn's own when it was cut off, as 124 by --timeout
	Duration   turnstone.Millis     `json:"duration_ms"`
	Stdout     string               `json:"stdout"` // its beginning, when it is truncated
	Stderr     string               `json:"stderr"`
	StdoutInfo turnstone.OutputInfo `json:"stdout_info"`
	StderrInfo turnstone.OutputInfo `json:"stderr_info"`
}

// maxCaptured is how much of an output a commandReport has, in bytes.
const maxCaptured = 1 << 20

// A captured is an output that goes into a commandReport.
type captured struct {
	mu    sync.Mutex // of a command that was cut off more may come while it is read
	text  strings.Builder
	bytes int64
	sum   hash.Hash
}

// Write implements io.Writer.
func (c *captured) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Write(p[:min(len(p), maxCaptured-c.text.Len())])
	c.bytes += int64(len(p))
	c.sum.Write(p)
	return len(p), nil
}

// read returns what there is so far.
func (c *captured) read() (string, turnstone.OutputInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String(), turnstone.OutputInfo{Bytes: c.bytes, Digest: turnstone.Digest("sha256:" + hex.EncodeToString(c.sum.Sum(nil))), Truncated: c.bytes > int64(c.text.Len())}
}

// A capturedCommand is a command whose outputs are printed as JSON.
type capturedCommand struct {
	argv           []string
	began          time.Time
	stdout, stderr captured
}

func newCapturedCommand(argv []string) *capturedCommand {
	return &capturedCommand{argv: argv, began: time.Now(), stdout: captured{sum: sha256.New()}, stderr: captured{sum: sha256.New()}}
}

func (c *capturedCommand) report(exitCode int) commandReport {
	r := commandReport{Argv: c.argv, ExitCode: exitCode, Duration: turnstone.Millis(time.Since(c.began))}
	r.Stdout, r.StdoutInfo = c.stdout.read()
	r.Stderr, r.StderrInfo = c.stderr.read()
	return r
}

// deliver prints the report of a command that ended with code, or that was cut off with
// verdict, which is then what the status says; nothing when the command wrote nothing and
// was not ended by its time. It returns verdict, or why the report could not be printed.
func (c *capturedCommand) deliver(a *app, code int, err, verdict error) error {
	var exit *exitError
	if err != nil && errors.As(verdict, &exit) {
		code = exit.code
	}
	r := c.report(code)
	if err != nil && code != exitTimeout && r.StdoutInfo.Bytes+r.StderrInfo.Bytes == 0 {
		return verdict
	}
	if err := a.writeJSON(r); err != nil {
		return &exitError{exitExec, err}
	}
	return verdict
}
