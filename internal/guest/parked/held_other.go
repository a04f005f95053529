//go:build !amd64

package parked

import "errors"

// A Held is a process at its program's first instruction.
type Held struct{}

// Hold is not implemented for this processor.
func Hold(Tracee) (*Held, error) { return nil, errors.New("not on this processor") }

// Release is never called.
func (*Held) Release(Start) error { return errors.New("not on this processor") }
