package plan

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A Request is one turn to run. A zero field selects the document's value, and then the default.
type Request struct {
	Document *document.Document
	Dir      string // the folder of the document's files, which they cannot leave
	Piped    bool   // Dir is the caller's folder, because the document came through a pipe
	// Defaults are for what the document leaves open, below all other fields. They grant nothing.
	Defaults document.Defaults
	// Grant lists keys of front matter, of config.GrantKeys. The document's requests under these
	// keys are granted unchanged. The other fields grant their requests.
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
	// NetworkRules are added to the document's rules: see docs/network.md. With Network, the modes
	// (Record, Replay) of NetworkRules replace the document's.
	NetworkRules  *document.NetworkRules
	SecretHeaders []string // "HOST=Name: value": see network.ParseSecretHeader
	Substrate     string   // "auto" or the name of a substrate
	Commands      bool     // list all commands of each step in the receipt

	Session  string             // name or ID; empty: an anonymous session
	Branch   string             // default "main"
	Lifetime turnstone.Lifetime // lifetime of the sandbox
	Home     string             // name of a persistent home directory
	Snapshot document.Snapshot  // the stored part of the machine
	Secrets  []string           // NAME=VALUE, only for the environment of the steps
	// Checkpoint is when the turn keeps what it has done so far.
	Checkpoint turnstone.Checkpoint

	Deterministic *bool          // every run gives the same result: see docs/determinism.md
	Tier          turnstone.Tier // empty: by the substrate; this and the next only if deterministic
	Seed          *uint64        // nil: derived from the document and the parent's state
	Clock         time.Time      // when the turn's clock starts

	// ID is the turn's ID, for a caller that has to know it before the turn starts; empty: a new one.
	ID turnstone.TurnID

	// Remote says that the caller is on another machine: what it asks for is in Document, and the
	// host's configuration alone grants what its own flags would grant here.
	Remote bool
}
