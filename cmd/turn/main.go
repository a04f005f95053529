// Command turn runs markdown documents in sandboxes. It is a thin shell over the libraries: each
// subcommand has its own file, which converts flags to one call and prints the result.
package main

import (
	"os"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/domaincmd"
	"turnstone.dev/turnstone/internal/cli/hostcmd"
	"turnstone.dev/turnstone/internal/cli/proofcmd"
	"turnstone.dev/turnstone/internal/cli/sandboxcmd"
)

func main() { os.Exit(cli.Main(new(commandLine), nil)) }

// commandLine is the command line, as kong parses it.
type commandLine struct {
	Run    runCmd             `cmd:"" group:"Run documents" help:"Run a document and print its receipt."`
	Exec   sandboxcmd.ExecCmd `cmd:"" group:"Run documents" help:"Run one command in a new sandbox."`
	Check  checkCmd           `cmd:"" group:"Run documents" help:"Check documents without running them."`
	Init   initCmd            `cmd:"" group:"Run documents" help:"Write a manifest with comments."`
	Replay replayCmd          `cmd:"" group:"Run documents" help:"Run a turn again and compare the results."`
	Bisect proofcmd.BisectCmd `cmd:"" group:"Run documents" help:"Find the first turn or command that differs."`

	Log     logCmd              `cmd:"" group:"Inspect turns" help:"List the turns of a session."`
	Show    showCmd             `cmd:"" group:"Inspect turns" help:"Show a turn, its receipt or its changes."`
	Diff    diffCmd             `cmd:"" group:"Inspect turns" help:"Compare the states of two turns."`
	Compare proofcmd.CompareCmd `cmd:"" group:"Inspect turns" help:"Lay several turns side by side."`
	Logs    logsCmd             `cmd:"" group:"Inspect turns" help:"Print the output of a Turn object of Kubernetes."`
	Trace   proofcmd.TraceCmd   `cmd:"" group:"Inspect turns" help:"Export what a turn ran to OpenTelemetry."`
	UI      sandboxcmd.UICmd    `cmd:"" name:"ui" group:"Inspect turns" help:"Serve a page that shows sessions and runs turns."`
	Ls      lsCmd               `cmd:"" group:"Inspect turns" help:"List files of a turn's state."`
	Cat     catCmd              `cmd:"" group:"Inspect turns" help:"Print a file of a turn's state."`
	Cp      cpCmd               `cmd:"" group:"Inspect turns" help:"Copy files out of a turn's state."`

	Verify proofcmd.VerifyCmd `cmd:"" group:"Prove what turns did" help:"Verify a receipt, or turns of a session."`
	Sign   proofcmd.SignCmd   `cmd:"" group:"Prove what turns did" help:"Add your signature to what a node signed."`
	Key    proofcmd.KeyCmd    `cmd:"" group:"Prove what turns did" help:"Make, show, trust and revoke keys."`

	Session sessionCmd `cmd:"" group:"Work with sessions" help:"List, show, remove, export, import and tag sessions."`
	Fork    forkCmd    `cmd:"" group:"Work with sessions" help:"Create a branch at a turn."`
	Merge   mergeCmd   `cmd:"" group:"Work with sessions" help:"Merge a turn into a branch."`
	Resume  resumeCmd  `cmd:"" group:"Work with sessions" help:"Resume an interrupted turn or a saved machine."`

	Sandbox  sandboxcmd.Cmd `cmd:"" group:"Manage sandboxes" help:"Create, use and remove long-lived sandboxes."`
	Template templateCmd    `cmd:"" group:"Manage sandboxes" help:"List, build, show and remove templates."`
	Home     homeCmd        `cmd:"" group:"Manage sandboxes" help:"List and remove persistent home directories."`

	Host  hostcmd.HostCmd   `cmd:"" group:"Use servers" help:"Add, list, select and remove servers."`
	Node  hostcmd.NodeCmd   `cmd:"" group:"Use servers" help:"List the nodes of a server, and forget lost ones."`
	Token hostcmd.TokenCmd  `cmd:"" group:"Use servers" help:"Create, list and revoke tokens of a server."`
	Audit hostcmd.AuditCmd  `cmd:"" group:"Use servers" help:"Show who did what on a server, and verify the log."`
	Usage hostcmd.UsageCmd  `cmd:"" group:"Use servers" help:"Show what your tenant used on a server."`
	MCP   sandboxcmd.MCPCmd `cmd:"" name:"mcp" group:"Use servers" help:"Serve tools for an agent over standard streams."`
	Serve hostcmd.ServeCmd  `cmd:"" group:"Use servers" help:"Answer clients over the network."`

	Domain domaincmd.Cmd     `cmd:"" group:"Maintain the host" help:"Manage the keys that seal sessions at rest."`
	Top    sandboxcmd.TopCmd `cmd:"" group:"Maintain the host" help:"Show running turns and sandboxes."`
	Doctor doctorCmd         `cmd:"" group:"Maintain the host" help:"Check this machine and suggest fixes."`
	Gc     gcCmd             `cmd:"" group:"Maintain the host" help:"Delete unreachable data."`
	Fsck   fsckCmd           `cmd:"" group:"Maintain the host" help:"Verify stored turns."`
	Du     duCmd             `cmd:"" group:"Maintain the host" help:"Show disk usage."`
	Backup hostcmd.BackupCmd `cmd:"" group:"Maintain the host" help:"Copy the state directory while it is in use."`
	Hash   proofcmd.HashCmd  `cmd:"" group:"Maintain the host" help:"Print the FS hash of a folder."`

	Help       helpCmd       `cmd:"" group:"Get help" help:"Print help about a command or a topic."`
	Version    versionCmd    `cmd:"" group:"Get help" help:"Print the version."`
	Completion completionCmd `cmd:"" group:"Get help" help:"Print a shell completion script."`

	PrepareNext  prepareCmd      `cmd:"" hidden:"" name:"prepare-next"`
	CompleteRefs completeRefsCmd `cmd:"" hidden:"" name:"complete-refs"`

	Verbose int `short:"v" type:"counter" help:"Log more; repeat for debug output."`
}
