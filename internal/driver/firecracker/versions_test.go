package firecracker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestStandstill checks that Firecracker 1.16.0 and 1.16.1, which lose a paused guest, are
// excluded.
func TestStandstill(t *testing.T) {
	for text, can := range map[string]bool{"1.12.0": true, "1.15.1": true, "1.16.0-dev": false,
		"1.16.0": false, "1.16.1": false,
		"1.16.2": true, "1.17.0-dev": true, "1.17.0": true, "2.16.0": true} {
		r, err := parseRelease("Firecracker v" + text)
		check(t, err)
		err = (&Substrate{release: r}).Abilities().Live
		if (err == nil) != can {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && (turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), wholeReleases) ||
			!strings.Contains(err.Error(), wholeReleases)) { // a receipt contains only the error
			t.Errorf("%s: %v (%s)", text, err, turnstone.HintOf(err))
		}
		if early := Standstill("Firecracker v" + text); (early == nil) != can {
			t.Errorf("%s: before there is a guest: %v", text, early)
		}
	}
}

var release1161 = release{1, 16, 1}

// TestNoStandstill checks that pauses are rejected before any of their effects, and that everything
// else works.
func TestNoStandstill(t *testing.T) {
	b := newBench(t, "")
	b.s.release = release1161
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	before := len(notes(t, b.log))
	dir := filepath.Join(t.TempDir(), "vm")
	_, resumed := b.s.RestoreFrom(within(t), b.m, dir)
	for what, err := range map[string]error{
		"pause":    vm.(substrate.Pauser).Pause(within(t)),
		"snapshot": vm.(substrate.Snapshotter).Snapshot(within(t), dir), "clone": resumed,
	} {
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), wholeReleases) {
			t.Errorf("%s: %v (%s)", what, err, turnstone.HintOf(err))
		}
	}
	if asked := requests(notes(t, b.log)[before:]); len(asked) > 0 {
		t.Errorf("Firecracker was asked %q", asked)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder is left")
	}
	speak(t, vm)
	b.nothingLeft(t)
}

// TestJailerVersion checks that a jailer of an older or a newer release is rejected.
func TestJailerVersion(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root's Firecracker is jailed")
	}
	b := newBench(t, "")
	for text, good := range map[string]bool{"Jailer v1.17.0": true, "Jailer v1.16.1": false,
		"Jailer v1.17.0-dev": false, "Firecracker v1.17.0": false, "": false,
		"Jailer v\x1b": false} {
		_, _, err := Find(t.Context(), &statedir.Dir{Root: t.TempDir()}, Options{Binary: b.s.binary,
			Jailer: b.script(t, "says", "echo '"+text+"'")})
		if (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && (turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), "jailer") ||
			strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%q: %s %v (%s)", text, turnstone.KindOf(err), err, turnstone.HintOf(err))
		}
		var e *JailerError
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%q: %v is no JailerError", text, err)
		}
		if other, ok := strings.CutPrefix(text, "Jailer v"); ok && !good && other != "\x1b" {
			if !strings.Contains(err.Error(), other) ||
				!strings.Contains(err.Error(), b.s.binary+" is Firecracker 1.17.0") {
				t.Errorf("%q: %v does not name both", text, err)
			}
		}
	}
}

// TestReleasesInDocs checks that the documentation and the errors name the releases that the code
// distinguishes.
func TestReleasesInDocs(t *testing.T) {
	b, err := os.ReadFile("../../../docs/firecracker.md")
	check(t, err)
	for _, row := range []string{
		fmt.Sprintf("\n| older than %d.%d | refused |\n", minMajor, minMinor),
		"\n| " + wholeReleases + " | everything |\n",
		"\n| " + losingReleases + " | turns. ",
	} {
		if !strings.Contains(string(b), row) {
			t.Errorf("docs/firecracker.md has no row %q", row)
		}
	}
	for minor := minMinor - 1; minor < 30; minor++ {
		r := release{1, minor, 0}
		text := fmt.Sprintf("1.%d", minor)
		said := "refused"
		switch {
		case strings.Contains(losingReleases, text+".0"):
			said = "loses"
		case minor >= minMinor:
			said = "whole" // no gap: the releases between the ends of wholeReleases, or beyond
		}
		is := "whole"
		if !r.atLeast(minMajor, minMinor) {
			is = "refused"
		} else if r.losesVsock() {
			is = "loses"
		}
		if said != is {
			t.Errorf("%s: said to be %s, and is %s", r, said, is)
		}
	}
	for _, text := range strings.Split(losingReleases, ", ") {
		if r, err := parseRelease("Firecracker v" + text); err != nil || !r.losesVsock() {
			t.Errorf("%s: %v", text, err)
		}
	}
	ends := regexp.MustCompile(`\d+\.\d+`).FindAllString(wholeReleases, -1)
	for i, text := range ends { // the ends of the ranges, and their neighbors
		r, err := parseRelease("Firecracker v" + text + ".0")
		check(t, err)
		if r.losesVsock() || !r.atLeast(minMajor, minMinor) {
			t.Errorf("%s is said to do everything", r)
		}
		// outside of a range: above its end, below its beginning
		next := release{1, r.minor + 1 - 2*(i%2^1), 0}
		if next.atLeast(minMajor, minMinor) && !next.losesVsock() {
			t.Errorf("%s does everything, and nobody says so", next)
		}
	}
}
