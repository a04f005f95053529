package repo

import (
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Record is the kept data of a turn: an object of the context store, as JSON. Its references
// (receipt, outputs, state) are objects too.
type Record struct {
	Format  int                 `json:"format"` // recordFormat
	ID      turnstone.TurnID    `json:"id"`
	Session turnstone.SessionID `json:"session"`
	Number  int                 `json:"number"` // in its session, from 1
	Branch  string              `json:"branch"`
	Parents []turnstone.TurnID  `json:"parents"` // none for a session's first turn, two for a merge
	Kind    turnstone.TurnKind  `json:"kind"`

	Image     string           `json:"image"`
	Template  turnstone.Digest `json:"template"`
	Substrate string           `json:"substrate,omitempty"`
	Isolation string           `json:"isolation,omitempty"`
	Shape     turnstone.Shape  `json:"shape"`
	Started   time.Time        `json:"started"`
	Millis    int64            `json:"duration_ms"`
	Result    turnstone.Result `json:"result"`
	Error     string           `json:"error,omitempty"`

	Document tree.Content `json:"document"` // the document that was run
	Receipt  tree.Content `json:"receipt"`
	Steps    []RecordStep `json:"steps,omitempty"`
	// KEY=VALUE from the caller, in addition to the document's
	Env     []string      `json:"env,omitempty"`
	Secrets []string      `json:"secrets,omitempty"` // names only
	Inputs  []RecordInput `json:"inputs,omitempty"`  // added files
	Timeout time.Duration `json:"timeout,omitempty"`

	// nil: the turn had no network, or no network activity
	Network *RecordNetwork `json:"network,omitempty"`
	// its home directory, by name, which is in no state
	Home string `json:"home,omitempty"`
	// empty unless its machine belonged to the session
	Lifetime document.Lifetime `json:"lifetime,omitempty"`

	// of the encoded State; empty if the turn left none
	State turnstone.Digest `json:"state,omitempty"`
	Layer LayerInfo        `json:"layer"`
	VM    *VMRef           `json:"vm,omitempty"` // the whole machine, if requested
}

// A RecordNetwork is the kept data about a turn's network.
type RecordNetwork struct {
	Spec *network.Spec `json:"spec,omitempty"` // the request, without the values of secrets
	// Index and Data are the recording, if there is one: an encoded recording.Recording, and the
	// bytes that it names.
	Index *tree.Content `json:"index,omitempty"`
	Data  *tree.Content `json:"data,omitempty"`
	Facts string        `json:"facts,omitempty"` // a description of the recording
	// Replayed is the turn whose recording was replayed.
	Replayed turnstone.TurnID `json:"replayed,omitempty"`
}

// A RecordStep is one step's result.
type RecordStep struct {
	Name     string           `json:"name"`
	Status   turnstone.Status `json:"status"`
	ExitCode *int             `json:"exit_code,omitempty"`
	Stdout   *tree.Content    `json:"stdout,omitempty"` // nil when empty or not kept
	Stderr   *tree.Content    `json:"stderr,omitempty"`
}

// A RecordInput is a file or folder that was copied to the sandbox before the steps.
type RecordInput struct {
	Dest string       `json:"dest"`
	Tar  tree.Content `json:"tar"`
}

// LayerInfo has the numbers of a turn's layer.
type LayerInfo struct {
	Digest  turnstone.Digest `json:"digest,omitempty"` // empty if nothing changed
	Added   int              `json:"added"`            // paths
	Changed int              `json:"changed"`
	Removed int              `json:"removed"`
}

// String describes the layer; empty if nothing changed.
func (i LayerInfo) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{i.Added, "added"}, {i.Changed, "changed"}, {i.Removed, "removed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

// A VMRef names a kept machine, as substrate.Keeper writes it.
type VMRef struct {
	Files  []VMFile          `json:"files"`
	Layers []lowerdir.Recipe `json:"layers,omitempty"` // the images below it, the lowest first
	// Image is the template's root image, which is kept with the template, and Below are the trees
	// of the template's layers, the lowest first. A nil Image was written by an older program.
	Image *tree.Content `json:"image,omitempty"`
	Below []tree.Ref    `json:"below,omitempty"`
}

// A VMFile is one file of a kept machine.
type VMFile struct {
	Name    string       `json:"name"`
	Content tree.Content `json:"content"`
}

// A State is the data that a turn leaves for the next turn: an object of the context store, as
// JSON.
type State struct {
	Format int      `json:"format"`
	Image  string   `json:"image"` // the template that its history began on
	Tree   tree.Ref `json:"tree"`
	Env    []string `json:"env"` // KEY=VALUE, sorted: the exported variables
	Cwd    string   `json:"cwd"`
}

const (
	RecordFormat = 1
	StateFormat  = 1
)
