// Package evidence measures what signing adds to a turn, and the verification of its receipt.
package evidence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// runs is the number of measurements; the median counts.
const runs = 300

// Measure prints a table's rows with the cost of the evidence of a receipt that a turn wrote: its
// statement is signed again with new keys in dir, and verified.
func Measure(ctx context.Context, receipt []byte, dir string, d size.Divisor) error {
	text, signed, err := proof.OpenText(ctx, "the receipt", receipt)
	if err != nil {
		return err
	}
	ring := key.Ring{Dir: &statedir.Dir{Root: dir}}
	node, err := ring.NodeKey(ctx)
	if err != nil {
		return err
	}
	caller, err := ring.Make(ctx, key.Caller, nil)
	if err != nil {
		return err
	}
	trust, err := ring.List()
	if err != nil {
		return err
	}
	s := *signed.Statement
	s.Predicate.Signers = []proof.Signer{{Role: key.Node, Key: node.String()},
		{Role: key.Caller, Key: caller.String()}}
	head := turnstone.Head{Session: s.Predicate.Turn.Session, Sequence: 1, Branch: "main",
		Turn: s.Predicate.Turn.ID, Statement: signed.Link, Time: time.Now()}
	var file []byte
	var sum time.Duration
	for _, part := range []struct {
		name string
		turn bool // a turn does it
		run  func() error
	}{
		{"read the keys of the node and the caller", true, func() error {
			if _, err := ring.NodeKey(ctx); err != nil {
				return err
			}
			c, err := ring.CallerKey(ctx)
			if err == nil {
				err = ring.InUse(key.Caller, c)
			}
			return err
		}},
		{"statement, two signatures, and their check", true, func() error {
			again, err := proof.Sign(ctx, &s, node, caller)
			if err == nil {
				file = proof.Attach(text, again)
			}
			return err
		}},
		{"entry of the log of heads", true, func() error {
			_, _, err := proof.SignHead(ctx, head, node)
			return err
		}},
		{"**added to a turn**", true, nil},
		{"verify the receipt, with both signatures", false, func() error {
			o, err := proof.OpenReceipt(ctx, "the receipt", file)
			if err == nil {
				_, err = o.Vouch(trust)
			}
			return err
		}},
	} {
		took := sum
		if part.run != nil {
			if took, err = median(part.run, d.Of(runs)); err != nil {
				return err
			}
		}
		if part.turn && part.run != nil {
			sum += took
		}
		fmt.Printf("| %s | %.2f ms |\n", part.name, float64(took.Microseconds())/1000)
	}
	return nil
}

// median returns the median duration of f, which it runs n times.
func median(f func() error, n int) (time.Duration, error) {
	var all []time.Duration
	for range n {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}
