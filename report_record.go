package turnstone

import (
	"fmt"
	"strings"
	"time"
)

// Content identifies a file's bytes.
type Content struct {
	Digest Digest `json:"digest"` // SHA-256 of the whole content
	Size   int64  `json:"size"`
	// Chunks names the object that lists the chunks of a large file; empty if the content is a
	// single object, whose digest is Digest.
	Chunks Digest `json:"chunks,omitempty"`
}

// A TreeRef names the tree of a state's files.
type TreeRef struct {
	Root Digest `json:"root"`    // digest of the object that encodes it
	Hash Digest `json:"fs_hash"` // digest of its files and their attributes
}

// An ImageRecipe describes how to make an image of a sandbox: with the trees and the history, the
// same bytes can be made again after the image was removed from the cache, or on another machine.
type ImageRecipe struct {
	Image  string  `json:"image"` // its name, which is its file's name
	From   TreeRef `json:"from"`
	To     TreeRef `json:"to"`
	Newest Digest  `json:"newest"` // key of the newest turn that it spans
	Turns  int     `json:"turns"`
}

// TurnInfo describes one turn of a session.
type TurnInfo struct {
	Turn     Turn        `json:"turn"`
	Session  Session     `json:"session"`
	Heads    []string    `json:"heads"` // branches whose head it is
	Tags     []string    `json:"tags"`
	Children []int       `json:"children"` // numbers of its child turns
	Record   *TurnRecord `json:"record"`   // null for a running or interrupted turn
	// Checkpoint is what the finished steps of a running or interrupted turn left; absent: nothing.
	Checkpoint *CheckpointInfo `json:"checkpoint,omitempty"`
	State      *TurnState      `json:"state"` // null if it left none
	Kept       string          `json:"kept,omitempty"`
}

// A CheckpointInfo describes what the finished steps of a turn left that has not ended.
type CheckpointInfo struct {
	Step    int          `json:"step"` // the number of the last finished step, from 1
	At      time.Time    `json:"at"`
	State   Digest       `json:"state"`
	Resumed []Resumption `json:"resumed,omitempty"`
	// What a resume needs: the turn's machine and its time limit. Zero in the answer of an older server.
	Machine Machine `json:"machine"`
	Timeout Millis  `json:"timeout_ms,omitzero"`
}

// A TurnRecord is the kept data of a turn: an object of the context store, as JSON. Its references
// (receipt, outputs, state) are objects too.
type TurnRecord struct {
	Format  int       `json:"format"` // of the encoding
	ID      TurnID    `json:"id"`
	Session SessionID `json:"session"`
	Number  int       `json:"number"` // in its session, from 1
	Branch  string    `json:"branch"`
	Parents []TurnID  `json:"parents"` // none for a session's first turn, two for a merge
	Kind    TurnKind  `json:"kind"`

	Image     string    `json:"image"`
	Template  Digest    `json:"template"`
	Substrate string    `json:"substrate,omitempty"`
	Isolation string    `json:"isolation,omitempty"`
	Origin    *Origin   `json:"origin,omitempty"` // what its sandbox was made of
	Shape     Shape     `json:"shape"`
	Started   time.Time `json:"started"`
	Millis    int64     `json:"duration_ms"`
	Result    Result    `json:"result"`
	Error     string    `json:"error,omitempty"`

	Document Content      `json:"document"` // the document of the turn
	Receipt  Content      `json:"receipt"`
	Steps    []RecordStep `json:"steps,omitempty"`
	// Trace has the commands of the steps: see TraceLine. It is nil if an older program kept the
	// turn, and for a merge.
	Trace *Content `json:"trace,omitempty"`
	// KEY=VALUE from the caller, in addition to the document's
	Env     []string      `json:"env,omitempty"`
	Secrets []string      `json:"secrets,omitempty"` // names only
	Inputs  []RecordInput `json:"inputs,omitempty"`  // added files
	Timeout time.Duration `json:"timeout,omitempty"`

	// nil: the turn had no network, or no network activity
	Network *RecordNetwork `json:"network,omitempty"`
	// its home directory, by name, which is in no state
	Home    string   `json:"home,omitempty"`
	HomeUse *HomeUse `json:"home_use,omitempty"` // nil: none, or a disk of an older program
	// empty unless its machine belonged to the session
	Lifetime Lifetime `json:"lifetime,omitempty"`

	// digest of the encoded TurnState; empty if the turn left none
	State Digest    `json:"state,omitempty"`
	Layer LayerInfo `json:"layer"`
	VM    *VMRef    `json:"vm,omitempty"` // the whole machine, if requested

	// what a deterministic turn ran with; nil: the turn was not deterministic
	Determinism *Determinism `json:"determinism,omitempty"`

	// Resumed has an entry for each time that the turn was resumed after an interruption.
	Resumed []Resumption `json:"resumed,omitempty"`
	// Progress has the results of the finished steps in a form that a resume reads. It is only in
	// the record of a checkpoint.
	Progress []Content `json:"progress,omitempty"`
	// Checkpoint is what the turn's document or its caller asked for; empty: none.
	Checkpoint Checkpoint `json:"checkpoint,omitempty"`
}

// An Origin names the files that a sandbox was made of. An empty digest is not known, such as those
// of a machine that an earlier turn has started, or does not exist, such as gVisor's kernel.
type Origin struct {
	Program Digest `json:"program,omitempty"` // runs the machine: runsc, QEMU, Firecracker
	Kernel  Digest `json:"kernel,omitempty"`
	Init    Digest `json:"init,omitempty"` // the initramfs, which has the agent in it
	Agent   Digest `json:"agent,omitempty"`
	Root    Digest `json:"root,omitempty"` // the template's image
}

// A RecordNetwork is the kept data about a turn's network.
type RecordNetwork struct {
	Spec *NetworkSpec `json:"spec,omitempty"` // the request, without the values of secrets
	// Index and Data are the recording, if there is one: the encoded index, and the bytes that it
	// names.
	Index *Content `json:"index,omitempty"`
	Data  *Content `json:"data,omitempty"`
	Facts string   `json:"facts,omitempty"` // a description of the recording
	// Replayed is the turn whose recording was replayed.
	Replayed TurnID `json:"replayed,omitempty"`
}

// A RecordStep is one step's result.
type RecordStep struct {
	Name     string   `json:"name"`
	Status   Status   `json:"status"`
	ExitCode *int     `json:"exit_code,omitempty"`
	Stdout   *Content `json:"stdout,omitempty"` // nil when empty or not kept
	Stderr   *Content `json:"stderr,omitempty"`
}

// A RecordInput is a file or folder that was copied to the sandbox before the steps.
type RecordInput struct {
	Dest string  `json:"dest"`
	Tar  Content `json:"tar"`
}

// LayerInfo has the numbers of a turn's layer.
type LayerInfo struct {
	Digest  Digest `json:"digest,omitempty"` // empty if nothing changed
	Added   int    `json:"added"`            // paths
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
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
	Files  []VMFile      `json:"files"`
	Layers []ImageRecipe `json:"layers,omitempty"` // the images below it, the lowest first
	// Image is the template's root image, which is kept with the template, and Below are the trees
	// of the template's layers, the lowest first. In records of older versions Image is nil.
	Image *Content  `json:"image,omitempty"`
	Below []TreeRef `json:"below,omitempty"`
}

// A VMFile is one file of a kept machine.
type VMFile struct {
	Name    string  `json:"name"`
	Content Content `json:"content"`
}

// A TurnState is the data that a turn leaves for the next turn: an object of the context store, as
// JSON.
type TurnState struct {
	Format int      `json:"format"`
	Image  string   `json:"image"` // the template that its history began on
	Tree   TreeRef  `json:"tree"`
	Env    []string `json:"env"` // KEY=VALUE, sorted: the exported variables
	Cwd    string   `json:"cwd"`
}
