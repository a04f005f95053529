package turn

import "turnstone.dev/turnstone/internal/repo"

// What is known of sessions and their turns, and what it takes to ask.
type (
	TurnInfo = repo.TurnInfo
	Record   = repo.Record

	State     = repo.State
	LayerInfo = repo.LayerInfo
	FileInfo  = repo.FileInfo

	DiffRequest  = repo.DiffRequest
	StateDiff    = repo.StateDiff
	FileChange   = repo.FileChange
	ChangeStatus = repo.ChangeStatus

	GCRequest  = repo.GCRequest
	GCReport   = repo.GCReport
	FsckReport = repo.FsckReport
	Usage      = repo.Usage
)

// How a path can have changed.
const (
	Added    = repo.Added
	Modified = repo.Modified
	Deleted  = repo.Deleted
	Retyped  = repo.Retyped
	Renamed  = repo.Renamed
)
