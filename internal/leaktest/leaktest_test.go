package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A run is tests that start a goroutine.
type run func() (code int)

// Run implements goleak.TestingM.
func (r run) Run() int { return r() }

// TestPatient: a goroutine that ends late is no leak, and one that stays is.
func TestPatient(t *testing.T) {
	begin := func() (end func()) {
		stay := make(chan struct{})
		go func() { <-stay }()
		return func() { close(stay) }
	}
	code := patient{run(func() int {
		//wait: later than goleak waits for it; more is as good
		time.AfterFunc(time.Second, begin()) // later than goleak waits for it
		return 0
	})}.Run()
	if err := goleak.Find(); code != 0 || err != nil {
		t.Errorf("one that ends late: %d, %v", code, err)
	}
	end := begin()
	if find(0) == nil {
		t.Error("one that stays is not found")
	}
	if code := (patient{run(func() int { return 3 })}).Run(); code != 3 {
		t.Errorf("tests that failed: %d", code)
	}
	end()
	if err := Find(); err != nil {
		t.Error(err)
	}
}
