package size

import (
	"strings"
	"testing"
	"time"
)

func TestDivisor(t *testing.T) {
	for _, tc := range []struct {
		d            Divisor
		n, of, warms int
		times        string
	}{{Full, 20, 20, 20, "20x"}, {Full, 1, 1, 1, "1x"}, {Quick, 20, 1, 0, "1x"},
		{Quick, 64 << 20, 1 << 20, 1 << 20, "1048576x"}, {Quick, 1000, 15, 15, "15x"}} {
		if of, warms, times := tc.d.Of(tc.n), tc.d.WarmUps(tc.n), tc.d.Times(tc.n); of != tc.of || warms != tc.warms ||
			times != tc.times {
			t.Errorf("%d of %d: %d, %d, %s", tc.n, tc.d, of, warms, times)
		}
	}
	if got := Quick.Time(64 * time.Second); got != time.Second {
		t.Errorf("a 64th of 64 s is %s", got)
	}
}

func TestOfProgram(t *testing.T) {
	for value, want := range map[string]Divisor{"": Full, "64": Quick, "x": Full, "0": Full, "-3": Full} {
		t.Setenv(variable, value)
		if got := OfProgram(); got != want {
			t.Errorf("%q: %d", value, got)
		}
	}
	name, value, _ := strings.Cut(Quick.Environ(), "=")
	t.Setenv(name, value)
	if got := OfProgram(); got != Quick {
		t.Errorf("passed %d, got %d", Quick, got)
	}
}
