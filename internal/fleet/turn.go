package fleet

import "time"

// A TurnState is a phase of a turn.
type TurnState string

// The states of turns.
const (
	TurnWaits       TurnState = "waits"
	TurnRuns        TurnState = "runs"
	TurnCommitted   TurnState = "committed"
	TurnInterrupted TurnState = "interrupted"
)

// A TurnEvent moves a turn to another state.
type TurnEvent string

// The events of turns.
const (
	TurnBegins    TurnEvent = "a holder takes the lease"
	TurnRenews    TurnEvent = "the holder renews the lease"
	TurnCommits   TurnEvent = "the holder commits"
	TurnLeaseEnds TurnEvent = "lease ends"
	TurnAgain     TurnEvent = "lease ends, and the document says retry"
	TurnCancelled TurnEvent = "cancelled"
)

// TurnTable are the transitions of turns.
var TurnTable = Table[TurnState, TurnEvent]{
	{[]TurnState{TurnWaits}, []TurnEvent{TurnBegins}, TurnRuns},
	{[]TurnState{TurnRuns}, []TurnEvent{TurnRenews}, TurnRuns},
	{[]TurnState{TurnRuns}, []TurnEvent{TurnCommits}, TurnCommitted},
	{[]TurnState{TurnRuns}, []TurnEvent{TurnAgain}, TurnWaits},
	{[]TurnState{TurnRuns}, []TurnEvent{TurnLeaseEnds, TurnCancelled}, TurnInterrupted},
	{[]TurnState{TurnWaits}, []TurnEvent{TurnCancelled}, TurnInterrupted},
}

// MaxAttempts is how often a turn begins whose document says retry.
const MaxAttempts = 2

// A Turn is the row of a turn in the database, with its lease. The times are the database's.
type Turn struct {
	State   TurnState
	Retry   bool   // the document says retry
	Attempt int    // begun so far
	Fence   uint64 // grows with each holder
	Holder  string
	Until   time.Duration // the end of the lease
}

// A Refusal says why a holder may not do something; empty: it may.
type Refusal string

// The refusals.
const (
	NotWaiting Refusal = "the turn does not wait for a holder"
	NotHeld    Refusal = "the turn has no holder"
	OldFence   Refusal = "another holder has had the lease since"
	TooLate    Refusal = "the lease has ended"
)

func (t *Turn) event(e TurnEvent) bool {
	to, ok := TurnTable.Next(t.State, e)
	t.State = to
	return ok
}

// Begin gives the lease to a holder, and returns its fence.
func (t *Turn) Begin(now, life time.Duration, holder string) (uint64, Refusal) {
	if !t.event(TurnBegins) {
		return 0, NotWaiting
	}
	t.Attempt++
	t.Fence++
	t.Holder, t.Until = holder, now+life
	return t.Fence, ""
}

// Renew extends the lease. One that has ended is not extended: its holder has stopped.
func (t *Turn) Renew(now, life time.Duration, fence uint64) Refusal {
	switch {
	case t.Fence != fence:
		return OldFence
	case t.State != TurnRuns:
		return NotHeld
	case now >= t.Until:
		return TooLate
	}
	t.event(TurnRenews)
	t.Until = max(t.Until, now+life)
	return ""
}

// Commit makes the turn its branch's newest, in the transaction that also writes the head. A lease
// that has ended, and that nobody has reaped, still permits it: the fence says that nobody else
// began.
func (t *Turn) Commit(fence uint64) Refusal {
	switch {
	case t.Fence != fence:
		return OldFence
	case !t.event(TurnCommits):
		return NotHeld
	}
	return ""
}

// Reap ends a lease whose time is over, and reports whether it did. The next fence is taken now, so
// that the old holder can no longer commit.
func (t *Turn) Reap(now time.Duration) bool {
	if t.State != TurnRuns || now < t.Until {
		return false
	}
	t.Fence++
	t.Holder = ""
	if t.Retry && t.Attempt < MaxAttempts {
		return t.event(TurnAgain)
	}
	return t.event(TurnLeaseEnds)
}

// Cancel interrupts a turn that has not ended.
func (t *Turn) Cancel() bool {
	t.Fence++
	t.Holder = ""
	return t.event(TurnCancelled)
}

// StopAt is when a holder stops what a lease is for, by its own monotonic clock, unless it was
// extended. sent is when it sent the last request that extended it: the answer may be late. Clocks
// may run at different speeds: a tenth of the life is for that.
func StopAt(sent, life time.Duration) time.Duration { return sent + life - life/10 }

// RenewAt is when a holder asks for the next extension.
func RenewAt(sent, life time.Duration) time.Duration { return sent + life/3 }
