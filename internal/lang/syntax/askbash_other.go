//go:build !linux || turnstone_client

package syntax

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// askBash returns bash's message about a script, or "" if bash accepts the script. A program that
// is called bash and does not answer as bash does, such as a launcher of Windows without a Linux
// behind it, accepts everything.
func askBash(ctx context.Context, bash, shell string, src []byte,
	options ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	args := []string{"--norc", "--noprofile"}
	if shell == "sh" {
		args = append(args, "--posix")
	}
	var stderr limitedBuffer
	cmd := exec.CommandContext(limited, bash, append(append(args, options...), "-n")...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(src), &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", turnstone.NewError("syntax.check", turnstone.KindCanceled, "",
			context.Cause(ctx))
	}
	if err == nil || limited.Err() != nil {
		return "", nil
	}
	for line := range strings.Lines(stderr.String()) {
		if bashMessage.MatchString(strings.TrimRight(line, "\r\n")) {
			return stderr.String(), nil
		}
	}
	return "", nil
}
