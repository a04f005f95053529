package doors

import (
	"math"
	"testing"

	"turnstone.dev/turnstone"
)

// TestFit: what listeners may take together leaves descriptors for everything else.
func TestFit(t *testing.T) {
	for _, most := range []uint64{0, 256, 300, 512, 1024, 4096, 20_000, 1 << 20, math.MaxUint64} {
		for _, a := range []Connections{{10_000, 1, 0}, {10_000, 3, 2000}, {1, 1, 1}, {100, 2, 2000}} {
			n, err := a.Fit(most)
			if err != nil {
				if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" || most > 1024 {
					t.Errorf("%+v of %d: %v", a, most, err)
				}
				continue
			}
			taken := uint64(filesEach * (n*a.Listeners + min(n, a.Others)))
			if n < 1 || n > a.Each || taken+reserved > most {
				t.Errorf("%+v of %d: %d connections take %d files", a, most, n, taken)
			}
		}
	}
	if n, err := (Connections{10_000, 3, 2000}).Fit(1 << 20); n != 10_000 || err != nil {
		t.Errorf("%d, %v: the service's limit is enough for the default", n, err)
	}
	if most, err := OpenFiles(); most == 0 || err != nil {
		t.Errorf("%d, %v", most, err)
	}
}
