// Package records keeps what a server's controller knows: tenants, the IDs of tokens, revocations,
// the owners and states of objects, idempotency keys and usage. Store is the interface, DB keeps it
// in SQLite, and package recordstest has the suite that every implementation passes.
//
// The truth about an object is at its node; a record follows the node's reports. Records hold no
// token, no key and no content: docs/decisions/0018-roles.md.
package records

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
)

// A Store keeps records. Its methods are safe for concurrent use. A change is durable when its
// method returns, except of what the node reports again: that a sandbox is configured, and its states
// ready and running.
type Store interface {
	Objects
	Tokens

	// PutNode stores a node under its name.
	PutNode(ctx context.Context, n Node) error
	// Nodes returns all nodes in the order of their names.
	Nodes(ctx context.Context) ([]Node, error)
	// Mark returns a mark of this moment for Reconcile.
	Mark(ctx context.Context) (Mark, error)
	// Reconcile makes the records of a node's objects agree with its full list.
	Reconcile(ctx context.Context, r Report) (Outcome, error)

	// PutUsage stores spans. A span that is stored already can grow.
	PutUsage(ctx context.Context, spans ...Usage) error
	// Usage sums up what a tenant used between since and until, in a session or, if it is empty, at
	// all. A machine that existed in a part of the time counts with that part.
	Usage(ctx context.Context, tenant, session string, since, until time.Time) (Total, error)

	// Prune removes what is no longer needed. Sandboxes and turns that have ended stay as long as their
	// node is lost, because it may have them still; that a node is gone is known for 60 days. A controller calls it every minute, because it also
	// stores the age of the database.
	Prune(ctx context.Context) error
	Close() error
}

// Objects are the records of what tenants own.
type Objects interface {
	// Create stores new objects of one tenant together with the key, which may be nil. If the key
	// was used for the same request, Create stores nothing and returns the objects of then, and
	// old. The error is of kind Invalid if the key was used for another request, an ID exists, or a
	// name is taken.
	Create(ctx context.Context, key *Key, objects ...Object) (made []Object, old bool, err error)
	// Used returns the objects of a key that was used for the same request, and none if it was not
	// used. It is Create without the creation.
	Used(ctx context.Context, key Key) ([]Object, error)
	// Object returns a tenant's object. The error is of kind NotFound, and the same, if there is
	// none and if another tenant owns it.
	Object(ctx context.Context, tenant string, kind Kind, id string) (Object, error)
	// Named is Object by the name of an object that has not ended.
	Named(ctx context.Context, tenant string, kind Kind, name string) (Object, error)
	// List returns a page of a tenant's objects from new to old, and the token of the next page, or
	// "". An object that was made after the first page is on none.
	List(ctx context.Context, tenant string, f Filter, p Page) ([]Object, string, error)
	// Change changes an object of a node. An object of another node is not found.
	Change(ctx context.Context, node string, kind Kind, id string, c Change) (Object, error)
}

// Tokens are tenants, the records of their tokens, and revocations.
type Tokens interface {
	// PutTenant stores a tenant. Create stores the tenants of its objects, too.
	PutTenant(ctx context.Context, t Tenant) error
	// Tenants returns all tenants in the order of their names.
	Tenants(ctx context.Context) ([]Tenant, error)
	// PutToken stores a token's record. An ID that exists is Invalid.
	PutToken(ctx context.Context, t Token) error
	// Token returns the record of a token of any tenant. The error is of kind NotFound.
	Token(ctx context.Context, id string) (Token, error)
	// TokenPage is List for the records of a tenant's tokens; tenant "": of all.
	TokenPage(ctx context.Context, tenant string, p Page) ([]Token, string, error)
	// Revoke stores revocations. One that exists keeps the later end.
	Revoke(ctx context.Context, r ...Revocation) error
	// Revocations returns what is revoked, without what ended before the given time.
	Revocations(ctx context.Context, after time.Time) ([]Revocation, error)
	// Number returns a number that is greater than all that it returned before, also before a
	// restart.
	Number(ctx context.Context) (uint64, error)
}

// A Kind is a kind of objects.
type Kind string

// The kinds.
const (
	Sandbox  Kind = "sandbox"
	Turn     Kind = "turn"
	Session  Kind = "session"
	Snapshot Kind = "snapshot"
)

// An Object is what a tenant owns on a node.
type Object struct {
	Kind          Kind
	ID            string
	Tenant, Owner string // the owner is the subject of the token that made it
	Node          string
	Name          string // unique among the tenant's objects of the kind that have not ended; or ""
	Session       string // may be empty
	Template      string // may be empty
	State         State  // Create sets the first of its kind
	Result        string // of a turn
	Reason        string // of a final state
	Paused        bool   // only in the states ready and running
	Labels        map[string]string
	ManagedBy     string    // a path, that its creation alone sets; or ""
	Detail        []byte    // the caller's own, without content of the tenant; at most MaxDetail
	Created       time.Time // Create sets it
	Changed       time.Time // the last change of state or paused
	Ended         time.Time // zero: not yet
	Expires       time.Time // zero: never
}

// MaxDetail is the maximum size of an object's detail.
const MaxDetail = 64 << 10

// KeyLife is how long an idempotency key stays after the end of its objects.
const KeyLife = 24 * time.Hour

// A Key is an idempotency key. The store counts its life in time that the server runs, so that a
// clock that jumps ends no key early.
type Key struct {
	Tenant, Method, Key string
	Request             turnstone.Digest // of what must be the same
}

// A Filter selects objects. Every field that is set must match.
type Filter struct {
	Kind         Kind // required
	States       []State
	IDs          []string
	Name         string
	Prefix       string // of the name
	Named        bool   // the name is not empty
	Session      string
	Sessions     []string // one of these
	Template     string
	Node         string
	Labels       map[string]string
	ManagedBy    string    // with "/" at the end: what begins so
	Since, Until time.Time // the time of creation; Until is excluded
}

// A Page selects a page of a list.
type Page struct {
	Size  int    // 0: 50; at most 100
	Token string // of the page before, with the same tenant and filter; "": the first
}

// A Change is a change of an object. Empty fields change nothing.
type Change struct {
	Event   Event // one transition, or
	State   State // what the node reports: a state that one or more transitions lead to
	Result  string
	Reason  string // for a final state; empty: the event
	Paused  *bool
	Name    *string
	Session *string
	Detail  []byte
	Expires *time.Time
	// Node is the node that has the session or the turn from now on, where nodes share sessions.
	Node *string
}

// NodeState says whether a node gets new objects.
type NodeState string

// The states of nodes.
const (
	NodeUp       NodeState = "up"
	NodeDraining NodeState = "draining"
	NodeLost     NodeState = "lost" // it does not answer
	NodeGone     NodeState = "gone" // it was lost, and what it had has ended
)

// A Node is a node of the server.
type Node struct {
	Name    string
	State   NodeState
	Address string
	Detail  []byte // the caller's own
	Seen    time.Time
}

// A Mark is a moment in the order of creations.
type Mark int64

// A Report is a node's full list.
type Report struct {
	Node string
	// Mark was taken before the node made the list: later objects may be missing in it.
	Mark Mark
	// Pending are the IDs of objects whose creation the node has not answered.
	Pending []string
	// Objects need only Kind, ID and State. One with a tenant that has not ended and has no record
	// gets one. A session that the node had lost and has again gets its record back.
	Objects []Object
	// Stays says which objects are not lost although the list misses them; nil: none.
	Stays func(Object) bool
	// Known: a sandbox or turn without a record gets none, and is surplus. The node was gone.
	Known bool
	// Moves says whether a turn of another node's record is this node's by now, where nodes share
	// sessions; nil: none is.
	Moves func(have, told Object) bool
}

// An Outcome says what Reconcile did.
type Outcome struct {
	Changed []Object // the node's state is another
	Lost    []Object // the node does not have them
	Adopted []Object // the node has them, and there was no record
	// Surplus are objects that the node has and should not: by their records they have ended, or
	// another node has them. They are as the node reported them.
	Surplus []Object
}

// LostReason is the reason of objects that their node does not have.
const LostReason = "the node lost it"

// A Tenant owns objects.
type Tenant struct {
	Name     string
	Disabled bool // it cannot make objects
	Created  time.Time
}

// A Token is the record of a token: never the token.
type Token struct {
	ID      string // jti
	Tenant  string
	Name    string // the display name
	Subject string
	Key     string // the thumbprint of the key that signed it
	Scopes  []string
	Issued  time.Time
	Expires time.Time
	// Ancestors are the tokens that it descends from; their end is its end. Nil: none.
	Ancestors []Ancestor
}

// An Ancestor is a token with which another token was made, directly or through others.
type Ancestor struct {
	Issuer  string `json:"issuer"`
	Key     string `json:"key,omitempty"`
	TokenID string `json:"token"`
}

// A Revocation ends a token, or all tokens of a key, before their time. Exactly one of TokenID and
// Key is set.
type Revocation struct {
	Issuer  string
	TokenID string
	Key     string
	Until   time.Time // the end of the token; zero: for ever
}

// A Usage is a span of time in which a machine existed.
type Usage struct {
	Tenant   string
	Kind     Kind // Sandbox or Turn
	Object   string
	Part     int // from 0; a new part begins when the machine's size changes
	Node     string
	From, To time.Time
	CPUs     int
	Memory   turnstone.Bytes
	// Session and Used may become known, or grow, as long as the span does.
	Session string
	Used    turnstone.Used
}

// A Total is the sum of spans.
type Total struct {
	Turns, Sandboxes int   // that began
	CPUSeconds       int64 // the time of machines, times their CPUs
	MemorySeconds    int64 // the time of machines, times their memory in MiB
	SandboxSeconds   int64 // the time of sandboxes
	TurnSeconds      int64 // the time of turns
	Used             turnstone.Used
}
