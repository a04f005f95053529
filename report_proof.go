package turnstone

import "time"

// A Voucher is a trusted key that signed a statement.
type Voucher struct {
	Role    string `json:"role"` // "node" or "caller"
	Key     string `json:"key"`  // its fingerprint
	Name    string `json:"name,omitempty"`
	Comment string `json:"comment,omitempty"`
	// Host is the host of this client by whose pin the key is trusted; empty: a list names the key.
	Host  string `json:"host,omitempty"`
	Later bool   `json:"later,omitempty"` // signed after the turn, which does not name this key
}

// VerifyRequest says what to verify, and whom to trust.
type VerifyRequest struct {
	Ref string // a turn: it and its ancestors; with All, a session: all of its turns
	// All also checks the log of heads, and the store as a whole.
	All bool
	// Trust are files in OpenSSH's format allowed_signers, and keys: "TYPE BASE64", or
	// "ROLE=TYPE BASE64". Empty: the list of the state directory.
	Trust []string
}

// A VerifyReport is the result of a verification: of a receipt alone, or of turns of a session.
type VerifyReport struct {
	OK     bool           `json:"ok"`
	Signed bool           `json:"signed"` // false: at least one turn is not signed
	Turns  []VerifiedTurn `json:"turns"`  // newest first; for a receipt, its turn
	// Problems name each place that does not verify.
	Problems []VerifyProblem `json:"problems"`
	// Store and Heads are set when a session was verified.
	Objects int `json:"objects,omitempty"` // of the store that were read and checked
	Heads   int `json:"heads,omitempty"`   // entries of the log of heads
}

// A VerifiedTurn is a turn whose statement was checked.
type VerifiedTurn struct {
	ID        TurnID    `json:"id"`
	Session   SessionID `json:"session"`
	Number    int       `json:"number"`
	Branch    string    `json:"branch"`
	Result    Result    `json:"result"`
	Receipt   Digest    `json:"receipt,omitempty"`
	Statement Digest    `json:"statement,omitempty"` // empty: the turn is not signed
	Parents   []Digest  `json:"parents"`             // statements
	Time      time.Time `json:"time,omitzero"`
	Vouchers  []Voucher `json:"vouchers"`
}

// A VerifyProblem is a place that does not verify.
type VerifyProblem struct {
	Where  string `json:"where"`
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Signed bool   `json:"signed"` // false: something is not signed; true: it does not verify
}

// A Head is an entry of the log of heads: from then on, a branch ended with a turn. The node that
// wrote the entry signed it.
type Head struct {
	Session  SessionID `json:"session"`
	Sequence int       `json:"sequence"`           // in the session's log, from 1
	Previous Digest    `json:"previous,omitempty"` // of the entry before
	Branch   string    `json:"branch"`
	Turn     TurnID    `json:"turn,omitempty"` // empty: the branch was removed
	// Statement is that of the turn; empty: the turn is not signed.
	Statement Digest    `json:"statement,omitempty"`
	Time      time.Time `json:"time"`
	Key       string    `json:"key"` // of the node: "TYPE BASE64"
}

// A LoggedHead is an entry with its digest, which the next entry names.
type LoggedHead struct {
	Head
	Digest Digest `json:"digest"`
}

// OnlyUnsigned reports whether all problems are turns that are not signed.
func (r *VerifyReport) OnlyUnsigned() bool {
	for _, p := range r.Problems {
		if p.Signed {
			return false
		}
	}
	return len(r.Problems) > 0
}
