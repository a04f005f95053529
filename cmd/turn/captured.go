package main

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

// A commandReport is what turn exec and turn sandbox exec print when the command has ended.
type commandReport struct {
	Argv       []string            `json:"argv"`
	ExitCode   int                 `json:"exit_code"` // 128 plus the signal's number when a signal ended it
	Duration   turnstone.Millis    `json:"duration_ms"`
	Stdout     string              `json:"stdout"` // its beginning, when it is truncated
	Stderr     string              `json:"stderr"`
	StdoutInfo executor.OutputInfo `json:"stdout_info"`
	StderrInfo executor.OutputInfo `json:"stderr_info"`
}

// maxCaptured is how much of an output a commandReport has, in bytes.
const maxCaptured = 1 << 20

// A captured is an output that goes into a commandReport. It belongs to one goroutine at a
// time.
type captured struct {
	text  strings.Builder
	bytes int64
	sum   hash.Hash
}

// Write implements io.Writer.
func (c *captured) Write(p []byte) (int, error) {
	c.text.Write(p[:min(len(p), maxCaptured-c.text.Len())])
	c.bytes += int64(len(p))
	c.sum.Write(p)
	return len(p), nil
}

func (c *captured) info() executor.OutputInfo {
	return executor.OutputInfo{Bytes: c.bytes, Digest: turnstone.Digest("sha256:" + hex.EncodeToString(c.sum.Sum(nil))), Truncated: c.bytes > int64(c.text.Len())}
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
	return commandReport{Argv: c.argv, ExitCode: exitCode, Duration: turnstone.Millis(time.Since(c.began)), Stdout: c.stdout.text.String(), Stderr: c.stderr.text.String(),
		StdoutInfo: c.stdout.info(), StderrInfo: c.stderr.info()}
}
