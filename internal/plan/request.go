package plan

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A Request is one turn to run. Values that are zero leave the document's word, and then the
// default, in force.
type Request struct {
	Document *document.Document
	Dir      string // what the document's files: are relative to, and may not leave
	Piped    bool   // Dir is the caller's, and not the document's, which came through a pipe
	// Grant are keys of front matter, of config.GrantKeys: what the document asks for there
	// is granted as it stands. The other fields say what their caller grants by itself.
	Grant   []string
	Image   string
	Env     []string // KEY=VALUE
	Add     []document.Transfer
	Get     []document.Transfer
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool
	// NetworkRules come beside the document's: see docs/network.md. With Network the mode
	// (Record, Replay) is theirs, and not the document's.
	NetworkRules  *document.NetworkRules
	SecretHeaders []string // "HOST=Name: value", as network.ParseSecretHeader reads them
	Substrate     string   // "auto" or a substrate's name
	Commands      bool     // the receipt lists all commands of each step

	Session  string             // name or ID; empty: an anonymous one
	Branch   string             // default "main"
	Lifetime turnstone.Lifetime // of the sandbox
	Home     string             // a persistent home directory
	Snapshot document.Snapshot  // what is kept of the machine
	Secrets  []string           // NAME=VALUE: in the steps' environment, and nowhere else
}
