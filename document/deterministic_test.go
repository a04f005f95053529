package document

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestDeterministicKeys(t *testing.T) {
	d, err := Parse("d.md", []byte("---\nseed: 42\nclock: 2024-02-29\ntier: strict\n"+
		"deterministic: true\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := d.Front
	if !f.Deterministic || f.Tier != turnstone.TierStrict || f.Seed == nil || *f.Seed != 42 ||
		!f.Clock.Equal(time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", f)
	}
	for _, text := range []string{"deterministic: true", "deterministic: false",
		"deterministic: true\nseed: 0", "deterministic: true\nseed: \"9007199254740991\"",
		"deterministic: true\nclock: \"1970-01-01T00:00:00Z\"",
		"deterministic: true\nclock: 2100-12-31T23:59:59Z\ntier: seeded"} {
		if _, err := Parse("d.md", []byte("---\n"+text+"\n---\n")); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDeterministicFaults checks the place of each fault, and its hint.
func TestDeterministicFaults(t *testing.T) {
	const on = "deterministic: true\n"
	for text, want := range map[string]string{
		"deterministic: yes":            `2:16: deterministic: "yes" is neither true nor false`,
		"deterministic:":                `2:15: deterministic has no scalar value`,
		"deterministic: [a]":            `2:16: deterministic has no scalar value`,
		"deterministic: maybe\nseed: 1": `2:16: deterministic: "maybe" is neither true nor false`,
		on + "tier: fast":               `3:7: tier: "fast" is neither seeded nor strict`,
		on + "tier: {}":                 `3:7: tier has no scalar value`,
		on + "seed: many":               `3:7: seed: "many" is not a whole number`,
		on + "seed: -1":                 `3:7: seed: "-1" is not a whole number`,
		on + "seed: 1.5":                `3:7: seed: "1.5" is not a whole number`,
		on + "seed: 0x10":               `3:7: seed: "0x10" is not a whole number`,
		on + "seed:":                    `3:6: seed has no scalar value`,
		on + "seed: 9007199254740992": `3:7: seed: "9007199254740992" is greater than ` +
			`9007199254740991`,
		on + "clock: 1969-12-31": `3:8: clock: 1969-12-31T00:00:00Z is before 1970`,
		on + "clock: 2101-01-01": `3:8: clock: 2101-01-01T00:00:00Z is after 2100`,
		on + "clock: noon":       `3:8: clock: "noon" is neither a date nor a time`,
		on + "clock: \"a\\nb\"":  `3:8: clock: "a\nb" is neither a date nor a time`,
		on + "clock: 2026-01-01T00:00:00.5Z": `3:8: clock: 2026-01-01T00:00:00.5Z is not in whole ` +
			`seconds`,
		on + on:                         `3:1: key "deterministic" is given twice`,
		on + "seed: 1\nseed: 1":         `4:1: key "seed" is given twice`,
		"seed: 1":                       `2:1: seed is only for deterministic turns`,
		"image: x\nclock: 2026-01-01":   `3:1: clock is only for deterministic turns`,
		"tier: strict":                  `2:1: tier is only for deterministic turns`,
		"deterministic: false\nseed: 1": `3:1: seed is only for deterministic turns`,
		"determinstic: true": `2:1: unknown key "determinstic"; the nearest ` +
			`known one is "deterministic"`,
	} {
		_, err := Parse("d.md", []byte("---\n"+text+"\n---\n"))
		if err == nil {
			t.Errorf("%q: no error", text)
			continue
		}
		if got := err.Error(); got != "d.md:"+want {
			t.Errorf("%q:\n got %s\nwant d.md:%s", text, got, want)
		}
		if turnstone.HintOf(err) == "" && !strings.Contains(fmt.Sprintf("%+v", err), "Hint") {
			t.Errorf("%q: no hint", text)
		}
	}
	_, err := Parse("d.md", []byte("---\ntier: seeded\nseed: 1\nclock: 2026-01-01\n---\n"))
	if n := strings.Count(fmt.Sprint(err), "is only for deterministic turns"); n != 3 {
		t.Errorf("%d of 3 faults: %v", n, err)
	}
}

// TestReceiptOfDeterministicTurn checks that a receipt says what the turn ran with, that it can be
// read again, and that the document stays the same.
func TestReceiptOfDeterministicTurn(t *testing.T) {
	ran := &turnstone.Determinism{Tier: turnstone.TierSeeded, Seed: 42,
		Clock: turnstone.DefaultClock()}
	for _, src := range []string{"# A\n", "---\ndeterministic: true\nseed: 7\n---\n# A\n"} {
		d, err := Parse("d.md", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		info := testInfo()
		info.Determinism = ran
		receipt := d.Receipt(info, nil)
		const want = "\n  deterministic: seeded, seed 42, clock 2026-01-01T00:00:00Z\n"
		if !strings.Contains(string(receipt), want) {
			t.Errorf("no line %q in\n%s", want, receipt)
		}
		if err := checkReceipt(d, nil, info); err != nil {
			t.Error(err)
		}
		again, claims, err := ReadReceipt("d.md", receipt)
		if err != nil {
			t.Fatal(err)
		}
		if got := claims.Info.Determinism; got == nil || *got != *ran {
			t.Errorf("%+v", got)
		}
		if string(again.Clean()) != src {
			t.Errorf("%q", again.Clean())
		}
	}
	for _, line := range []string{"seeded", "fast, seed 1, clock 2026-01-01T00:00:00Z", "[a, b]"} {
		src := []byte("---\nturn:\n  result: passed\n  deterministic: " + line + "\n---\n")
		if _, err := Parse("d.md", src); err != nil { // any content is accepted, and replaced
			t.Errorf("%q: %v", line, err)
		}
		if _, _, err := ReadReceipt("d.md", src); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", line, err)
		}
	}
}
