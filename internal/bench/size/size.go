// Package size divides what the benchmarks measure, so that a quick run executes all of their code in seconds.
package size

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// A Divisor divides the sizes of a benchmark: files, bytes, rounds. 1 leaves them.
type Divisor int

// The divisors of a measurement, and of a run that only shows that the benchmarks work.
const (
	Full  Divisor = 1
	Quick Divisor = 64
)

// variable passes a divisor to the benchmarks of other packages, which make bench runs as programs.
const variable = "TURNSTONE_BENCH_DIVISOR"

// OfProgram returns the divisor that the program that started this one passed: Full without one.
func OfProgram() Divisor {
	n, err := strconv.Atoi(os.Getenv(variable))
	if err != nil || n < 1 {
		return Full
	}
	return Divisor(n)
}

// Environ returns the variable that passes d to a program.
func (d Divisor) Environ() string { return fmt.Sprintf("%s=%d", variable, d) }

// Of returns n divided by d, but at least 1.
func (d Divisor) Of(n int) int { return max(1, n/int(d)) }

// WarmUps returns n divided by d: the number of measurements that do not count. A quick run has none.
func (d Divisor) WarmUps(n int) int { return n / int(d) }

// Time returns t divided by d.
func (d Divisor) Time(t time.Duration) time.Duration { return t / time.Duration(d) }

// Times returns n, divided by d, as the flag -test.benchtime takes it.
func (d Divisor) Times(n int) string { return fmt.Sprintf("%dx", d.Of(n)) }
