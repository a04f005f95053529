// Package ui serves a page on this machine that shows sessions, their turns and files, and works with
// them: the server of turn ui. It knows neither where the turns are nor how they are stored: see
// Place.
//
// What a guest has written is hostile: receipts, outputs, names of files and of sessions. The server
// sends it as JSON, a receipt as a tree of nodes, and the page makes text nodes of it. No part of it
// is markup, and no address of it is a link unless it is one of http or https.
package ui

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

// The parts of a Place. The methods are those of executor.Executor with the same name.
type (
	// Sessions finds sessions and their turns.
	Sessions interface {
		Sessions(ctx context.Context) ([]turnstone.SessionInfo, error)
		Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error)
		Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error)
	}
	// Evidence reads what turns printed and ran, and verifies it.
	Evidence interface {
		Receipt(ctx context.Context, ref string) ([]byte, error)
		Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error
		Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport, error)
	}
	// Files reads the files of the states of turns.
	Files interface {
		ListFiles(ctx context.Context, ref, name string, recursive bool,
			each func(turnstone.FileInfo) error) error
		OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error)
		Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error)
	}
	// Runner runs documents and turns.
	Runner interface {
		Run(ctx context.Context, req executor.Request, obs executor.Observer) (
			*turnstone.TurnReport, error)
		Replay(ctx context.Context, ref string, opts executor.ReplayOptions,
			obs executor.Observer) (*turnstone.ReplayReport, error)
	}
	// Changer changes branches.
	Changer interface {
		Fork(ctx context.Context, ref, name string) (turnstone.Branch, error)
		Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport, error)
	}
)

// A Place is where the turns are: this machine, or a host.
type Place struct {
	Sessions Sessions
	Evidence Evidence
	Files    Files
	Runner   Runner
	Changer  Changer
	// Name is the place's name for people; empty: this machine.
	Name string
}
