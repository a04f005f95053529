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

// A commandReport is the output of turn exec and turn sandbox exec when the command has ended.
type commandReport struct {
	Argv []string `json:"argv"`
	// 128 plus the signal's number if a signal ended it; turn's own for an interrupted command,
	// such as 124 by --timeout
	ExitCode   int                  `json:"exit_code"`
	Duration   turnstone.Millis     `json:"duration_ms"`
	Stdout     string               `json:"stdout"` // its beginning, if it is truncated
	Stderr     string               `json:"stderr"`
	StdoutInfo turnstone.OutputInfo `json:"stdout_info"`
	StderrInfo turnstone.OutputInfo `json:"stderr_info"`
}

// maxCaptured bounds the bytes of an output in a commandReport.
const maxCaptured = 1 << 20

// A captured is an output for a commandReport.
type captured struct {
	mu    sync.Mutex // an interrupted command may still write during a read
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

// read returns the output so far.
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

// deliver prints the report of a command that ended with code, or that was interrupted with
// verdict, whose status the report then has; nothing if the command wrote nothing and did not end
// by its time limit. It returns verdict, or an error if the report could not be printed.
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
