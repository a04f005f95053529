// Package testsize tells tests that sweep how far to go: floods, models, and faults at each place of an
// operation. Each run of the tests sweeps a little, and a full one all of it.
package testsize

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// variable is set in a full run: make test-again FULL=1.
const variable = "TURN_TEST_FULL"

// Full reports whether the run is a full one.
func Full() bool { return os.Getenv(variable) != "" }

// Of returns full in a full run, and short otherwise.
func Of[T any](short, full T) T {
	if Full() {
		return full
	}
	return short
}

// Step returns the distance between the places that a sweep tries: 1 in a full run, and short otherwise.
func Step(short int) int { return Of(short, 1) }

// Checks lets rapid check properties n times in this test, unless the run is a full one or a flag says otherwise.
func Checks(t testing.TB, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if Full() || f == nil || f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
}
