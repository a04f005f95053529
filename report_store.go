package turnstone

import "time"

// A StoreSummary counts what Fsck read.
type StoreSummary struct {
	Packs    int   `json:"packs"`
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"` // total size of the packs
	Problems int   `json:"problems"`
}

// StoreUsage is the amount of data in the store.
type StoreUsage struct {
	Packs   int   `json:"packs"`
	Objects int   `json:"objects"`
	Stored  int64 `json:"stored_bytes"` // of the packs
	Bytes   int64 `json:"bytes"`        // of the objects, uncompressed
}

// StoreSwept is the part of a garbage collection that concerns the store.
type StoreSwept struct {
	Objects      int   `json:"objects"` // deleted objects
	Kept         int   `json:"kept"`
	PacksRemoved int   `json:"packs_removed"`
	PacksMade    int   `json:"packs_made"`
	Freed        int64 `json:"freed_bytes"` // size of the removed packs minus the new packs
}

// FsckReport lists the data that Fsck read, and its problems.
type FsckReport struct {
	Store    StoreSummary  `json:"store"`
	Sessions int           `json:"sessions"`
	Turns    int           `json:"turns"`
	Problems []FsckProblem `json:"problems"`
	More     int           `json:"problems_more,omitempty"` // that are not in Problems
	// Unused are domains that no session is in. The next gc destroys their keys.
	Unused []DomainID `json:"unused_domains,omitempty"`
}

// A FsckProblem is one problem.
type FsckProblem struct {
	Where    string `json:"where"` // the object, the pack, or the turn and the path
	Error    string `json:"error"`
	Repaired bool   `json:"repaired,omitempty"`
}

// OK reports whether there are no problems, or only repaired ones.
func (r *FsckReport) OK() bool {
	for _, p := range r.Problems {
		if !p.Repaired {
			return false
		}
	}
	return r.More == 0
}

// GCRequest sets the ages at which data is deleted.
type GCRequest struct {
	// sessions without a name and without a tag, since their last turn; folders of turns in no
	// session
	KeepAnonymous   time.Duration
	KeepUnreachable time.Duration // turns that are not an ancestor of a branch, tag or running turn
	DryRun          bool
	Now             time.Time // zero: the current time
}

// GCReport lists the data that GC deleted, or would delete.
type GCReport struct {
	DryRun   bool       `json:"dry_run"`
	Sessions []Session  `json:"sessions"`
	Turns    []Turn     `json:"turns"`
	Store    StoreSwept `json:"store"` // in a dry run: objects only
	// below turns/, of turns that are in no session
	Folders int `json:"turn_folders"`
	// outputs of killed turns that no receipt names
	Captures int `json:"captures"`
	// left by killed processes; a dry run does not count them
	Leases int `json:"leases"`
	Images int `json:"images"` // of the cache, for deleted turns
	// whose keys were destroyed: no session is in them
	Domains []DomainID `json:"domains"`
	// packs, images and folders; in a dry run: without packs
	Freed   int64 `json:"freed_bytes"`
	Remain  int   `json:"turns_remain"`
	Objects int   `json:"objects_remain"`
	// files of escaped machines that cannot be removed, with the reason
	Stuck []string `json:"stuck,omitempty"`
}

// Usage reports disk usage, in bytes.
type Usage struct {
	Sessions []SessionUsage `json:"sessions"`
	// Logical is the data that all sessions and homes need, each object counted once; Shared is the part that
	// several sessions need. Both are uncompressed, and without data in templates.
	Logical int64      `json:"logical_bytes"`
	Shared  int64      `json:"shared_bytes"`
	Store   StoreUsage `json:"store"`
	// Disk usage of folders of the state directory.
	Database int64 `json:"database_bytes"`
	Images   int64 `json:"images_bytes"` // a cache of images that sandboxes mount
	Turns    int64 `json:"turns_bytes"`  // original receipts and outputs of turns
	Machines int64 `json:"machines_bytes"`
	// Homes is what homes need in the store, uncompressed, and the disk usage of those that are disks.
	Homes     int64 `json:"homes_bytes"`
	Templates int64 `json:"templates_bytes"`
}

// SessionUsage reports the data that one session needs, uncompressed and without data in templates.
type SessionUsage struct {
	ID      SessionID `json:"id"`
	Name    string    `json:"name,omitempty"`
	Turns   int       `json:"turns"`
	Logical int64     `json:"logical_bytes"`
	// needed by no other session: about the space that its removal frees, before compression
	Unique int64 `json:"unique_bytes"`
	Shared int64 `json:"shared_bytes"`
}

// HomeInfo describes a home.
type HomeInfo struct {
	Name   string    `json:"name"`
	Owner  string    `json:"owner,omitempty"` // the key of a server's client; absent: this host's user
	Bytes  int64     `json:"bytes"`           // of its files; of a disk: occupied
	FSHash Digest    `json:"fs_hash,omitempty"`
	Disk   bool      `json:"disk,omitempty"` // a disk, which becomes a tree when it is used
	Used   time.Time `json:"used"`           // time of the last change
	InUse  bool      `json:"in_use"`
	Turn   TurnID    `json:"turn,omitempty"` // the current or last user
}

// A HomeUse is a turn's use of a home.
type HomeUse struct {
	Name  string   `json:"name"`
	Began TreeRef  `json:"began"`           // the home's files when the turn began
	Ended *TreeRef `json:"ended,omitempty"` // at its end; absent: the turn kept no state
}

// A BackupReport describes a backup of a state directory.
type BackupReport struct {
	To   string `json:"to"`
	Keys string `json:"keys,omitempty"` // the folder with the private keys; empty: they were not copied
	// Objects is the bucket that keeps the objects, of which the backup has no copy; empty: it has.
	Objects     string   `json:"objects,omitempty"`
	Directories int      `json:"directories"` // the state directory, and those of tenants
	Files       int      `json:"files"`
	Bytes       int64    `json:"bytes"`
	Copied      int      `json:"copied"` // files that an earlier backup did not have
	CopiedBytes int64    `json:"copied_bytes"`
	Removed     int      `json:"removed"` // of an earlier backup, because they are no longer here
	Left        []string `json:"left"`    // of the state directory, that are not in the backup
}
