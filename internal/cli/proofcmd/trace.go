package proofcmd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/otlp"
)

// TraceCmd has the commands below turn trace.
type TraceCmd struct {
	Export traceExportCmd `cmd:"" help:"Export a turn's commands as OpenTelemetry spans."`
}

type traceExportCmd struct {
	Ref    string  `arg:"" help:"Turn: SESSION@N, SESSION@BRANCH or an ID."`
	Output string  `short:"o" help:"Write OTLP/JSON to this file (default: standard output)." placeholder:"FILE"`
	OTLP   *string `name:"otlp" help:"Send OTLP to this collector, or to that of OTEL_* (env)." placeholder:"URL"`
}

// Help is shown below the flags' summary.
func (c *traceExportCmd) Help() string {
	return `The turn, its steps, their commands and their network connections are spans of one
trace. A second export has the same IDs. turn show --commands prints the commands as
text. Secret values are masked, as in the receipt.

--otlp env takes the collector from OTEL_EXPORTER_OTLP_ENDPOINT. The standard variables
for headers, certificates, compression and the time limit apply to every collector.`
}

// Examples returns command lines for the help.
func (c *traceExportCmd) Examples() []string {
	return []string{
		"turn trace export research@2 -o trace.json",
		"turn trace export research@2 --otlp http://localhost:4318",
		"turn trace export research@2 --otlp env",
	}
}

// Validate is called by kong.
func (c *traceExportCmd) Validate() error {
	if c.Output != "" && c.OTLP != nil {
		return errors.New("-o cannot be used with --otlp")
	}
	if c.OTLP != nil && *c.OTLP == "" {
		return errors.New("--otlp: the URL is empty; env takes that of OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	return nil
}

// Run exports the trace.
func (c *traceExportCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x cli.Executor) error {
		read := func(each func(turnstone.TraceLine) error) error {
			return x.Trace(ctx, c.Ref, each)
		}
		if c.OTLP != nil {
			endpoint := *c.OTLP
			if endpoint == "env" {
				endpoint = ""
			}
			return otlp.Send(ctx, endpoint, read)
		}
		var out io.Writer = a.Stdout
		if c.Output != "" && c.Output != "-" {
			f, err := os.OpenFile(c.Output, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
			if err != nil {
				return turnstone.NewError("otlp.write", turnstone.KindInvalid, c.Output, err)
			}
			err = c.write(ctx, f, read)
			return errors.Join(err, f.Close())
		}
		return c.write(ctx, out, read)
	})
}

func (c *traceExportCmd) write(ctx context.Context, w io.Writer, read otlp.Read) error {
	out := bufio.NewWriter(w)
	return errors.Join(otlp.Write(ctx, out, read), out.Flush())
}
