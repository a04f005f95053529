package turnstone

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Millis is a duration that JSON encodes as a number of milliseconds, with microsecond precision.
type Millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) {
	us := time.Duration(m).Microseconds()
	if us%1000 == 0 {
		return strconv.AppendInt(nil, us/1000, 10), nil
	}
	return strconv.AppendFloat(nil, float64(us)/1000, 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var ms float64
	if err := json.Unmarshal(b, &ms); err != nil {
		return err
	}
	*m = Millis(math.Round(ms*1000)) * Millis(time.Microsecond)
	return nil
}

// Mode is the permission bits of a file, with set-user-ID, set-group-ID and sticky. Its text form
// is four octal digits, such as "0644".
type Mode uint32

// String returns four octal digits.
func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	bits, err := strconv.ParseUint(string(text), 8, 12)
	if err != nil {
		return fmt.Errorf("%q is not a mode: write octal digits, such as 0644", text)
	}
	*m = Mode(bits)
	return nil
}
