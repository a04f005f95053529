// Command turn-server is what turn serve runs: the server, whose libraries turn itself does not
// link, because they would delay each of its commands.
package main

import (
	"os"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/servecmd"
)

func main() { os.Exit(cli.Main(new(commandLine), nil)) }

// commandLine is the command line, as kong parses it. Its command is that of turn.
type commandLine struct {
	Serve   serveCmd `cmd:"" help:"Answer clients over the network."`
	Verbose int      `short:"v" type:"counter" help:"Log more; repeat for debug output."`
}

type serveCmd struct {
	servecmd.Flags `embed:""`
}
