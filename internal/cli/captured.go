package cli

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

// A CommandReport is the output of turn exec and turn sandbox exec when the command has ended.
type CommandReport struct {
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

// maxCaptured bounds the bytes of an output in a CommandReport.
const maxCaptured = 1 << 20

// A capturedOutput is an output for a CommandReport.
type capturedOutput struct {
	mu    sync.Mutex // an interrupted command may still write during a read
	text  strings.Builder
	bytes int64
	sum   hash.Hash
}

// Write implements io.Writer.
func (c *capturedOutput) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Write(p[:min(len(p), maxCaptured-c.text.Len())])
	c.bytes += int64(len(p))
	c.sum.Write(p)
	return len(p), nil
}

// read returns the output so far.
func (c *capturedOutput) read() (string, turnstone.OutputInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	digest := turnstone.Digest("sha256:" + hex.EncodeToString(c.sum.Sum(nil)))
	return c.text.String(), turnstone.OutputInfo{Bytes: c.bytes, Digest: digest,
		Truncated: c.bytes > int64(c.text.Len())}
}

// A CapturedCommand is a command whose outputs are printed as JSON.
type CapturedCommand struct {
	argv           []string
	began          time.Time
	Stdout, Stderr capturedOutput
}

func NewCapturedCommand(argv []string) *CapturedCommand {
	return &CapturedCommand{argv: argv, began: time.Now(),
		Stdout: capturedOutput{sum: sha256.New()}, Stderr: capturedOutput{sum: sha256.New()}}
}

func (c *CapturedCommand) report(exitCode int) CommandReport {
	took := turnstone.Millis(time.Since(c.began))
	r := CommandReport{Argv: c.argv, ExitCode: exitCode, Duration: took}
	r.Stdout, r.StdoutInfo = c.Stdout.read()
	r.Stderr, r.StderrInfo = c.Stderr.read()
	return r
}

// Deliver prints the report of a command that ended with code, or that was interrupted with
// verdict, whose status the report then has; nothing if the command wrote nothing and did not end
// by its time limit. It returns verdict, or an error if the report could not be printed.
func (c *CapturedCommand) Deliver(a *App, code int, err, verdict error) error {
	var exit *ExitError
	if err != nil && errors.As(verdict, &exit) {
		code = exit.Code
	}
	r := c.report(code)
	if err != nil && code != ExitTimeout && r.StdoutInfo.Bytes+r.StderrInfo.Bytes == 0 {
		return verdict
	}
	if err := a.WriteJSON(r); err != nil {
		return Exit(ExitExec, err)
	}
	return verdict
}
