package turnstone

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSeed(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "42": 42, "9007199254740991": MaxSeed} {
		if got, err := ParseSeed(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", "042", "0x2a", "1_000", "4.2", "1e3", "forty-two",
		" 42", "9007199254740992", "18446744073709551616", strings.Repeat("9", 1000)} {
		if got, err := ParseSeed(text); err == nil || len(err.Error()) > 100 {
			t.Errorf("%.40q: %d, %v", text, got, err)
		}
	}
}

func TestParseClock(t *testing.T) {
	for text, want := range map[string]string{
		"2026-01-01":                "2026-01-01T00:00:00Z",
		"2026-01-01T12:00:00+02:00": "2026-01-01T10:00:00Z",
		"1970-01-01T00:00:00Z":      "1970-01-01T00:00:00Z",
		"2100-12-31T23:59:59Z":      "2100-12-31T23:59:59Z",
		"2024-02-29":                "2024-02-29T00:00:00Z",
	} {
		if got, err := ParseClock(text); err != nil || got.Format(time.RFC3339) != want ||
			got.Location() != time.UTC {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"1969-12-31T23:59:59Z":        "is before 1970",
		"1970-01-01T00:00:00+01:00":   "is before 1970", // in UTC
		"2101-01-01":                  "is after 2100",
		"2100-12-31T23:59:59-01:00":   "is after 2100",
		"9999-12-31":                  "is after 2100",
		"2026-01-01T00:00:00.5Z":      "is not in whole seconds",
		"2026-02-30":                  "neither a date nor a time",
		"2026-01-01T00:00:00":         "neither a date nor a time",
		"2026-01-01 00:00:00":         "neither a date nor a time",
		"":                            "neither a date nor a time",
		"now":                         "neither a date nor a time",
		strings.Repeat("2026-", 1000): "neither a date nor a time",
	} {
		if got, err := ParseClock(text); err == nil || !strings.Contains(err.Error(), says) ||
			len(err.Error()) > 100 {
			t.Errorf("%.40q: %v, %v", text, got, err)
		}
	}
}

// TestDeterminismText checks that the text of a Determinism has its values.
func TestDeterminismText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Determinism{Tier: rapid.SampledFrom(Tiers()).Draw(t, "tier"),
			Seed: rapid.Uint64Range(0, MaxSeed).Draw(t, "seed"),
			Clock: time.Unix(rapid.Int64Range(0, 4133980799).Draw(t, "clock"),
				0).UTC()}
		got, err := ParseDeterminism(d.String())
		if err != nil || got != d {
			t.Fatalf("%q: %+v, %v", d.String(), got, err)
		}
	})
	for _, text := range []string{"", "seeded", "fast, seed 1, clock 2026-01-01T00:00:00Z",
		"seeded, seed 1, clock 2026-01-01", "seeded, seed 01, clock 2026-01-01T00:00:00Z",
		"seeded, seed 1, clock 2026-01-01T01:00:00+01:00",
		"seeded, seed 1, clock 2026-01-01T00:00:00Z ",
		"strict, seed 9007199254740992, clock 2026-01-01T00:00:00Z"} {
		if got, err := ParseDeterminism(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
