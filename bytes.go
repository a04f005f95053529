package turnstone

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes.
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
}

// ParseBytes parses a size: an integer or decimal number and a unit. K, M, G and T, alone or
// followed by B or iB, are powers of 1024, as in QEMU and Docker and as Kubernetes' Mi and Gi for
// memory. A number without a unit counts bytes.
func ParseBytes(s string) (Bytes, error) {
	num := strings.TrimRight(s, "KMGTBikmgtb")
	unit := strings.ToLower(strings.TrimSpace(s[len(num):]))
	factor, ok := map[string]int64{
		"": 1, "b": 1,
		"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10,
		"m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
		"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30,
		"t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
	}[unit]
	v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
	if !ok || err != nil || v < 0 || math.IsNaN(v) || v*float64(factor) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size: write a number and a unit, such as 512MiB or 2GiB",
			s)
	}
	return Bytes(v * float64(factor)), nil
}

// String returns the size in the largest unit that divides the size, such as "512MiB".
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && int64(b)%u.factor == 0 {
			return strconv.FormatInt(int64(b)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// Human returns the rounded size, such as "1.4 MiB".
func (b Bytes) Human() string {
	for _, u := range byteUnits {
		if int64(b) >= u.factor {
			return fmt.Sprintf("%.1f %s", float64(b)/float64(u.factor), u.suffix)
		}
	}
	return fmt.Sprintf("%d bytes", int64(b))
}
