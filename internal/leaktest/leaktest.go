// Package leaktest gives the goroutines of tests as long to end as a busy machine needs.
//
// goleak looks for goroutines that tests left behind for less than half a second. One that waits for
// another process, or whose process was stopped meanwhile, is found although it ends.
package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds the wait for goroutines to end. A leak is reported after it.
const patience = 2 * time.Minute

// Patient returns m for goleak.VerifyTestMain: after tests that passed its Run waits for the end of
// their goroutines.
func Patient(m *testing.M) goleak.TestingM { return patient{m} }

type patient struct{ m goleak.TestingM }

// Run implements goleak.TestingM.
func (p patient) Run() int {
	code := p.m.Run()
	if code == 0 {
		_ = Find() // goleak.VerifyTestMain reports what is left
	}
	return code
}

// Find is goleak.Find with more patience.
func Find(options ...goleak.Option) error { return find(patience, options...) }

func find(patience time.Duration, options ...goleak.Option) error {
	for until := time.Now().Add(patience); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(until) {
			return err
		}
	}
}
