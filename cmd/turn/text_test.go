package main

import (
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func TestModes(t *testing.T) {
	for want, f := range map[string]turnstone.FileInfo{
		"lrwxrwxrwx": {Type: "symlink", Mode: 0o777}, "drwxrwxrwt": {Type: "dir", Mode: 0o1777},
		"drwxrwx--T": {Type: "dir", Mode: 0o1770},
		"-rwsr-xr-x": {Type: "file", Mode: 0o4755}, "-rwSr--r--": {Type: "file", Mode: 0o4644},
		"-rwxr-sr-x": {Type: "file", Mode: 0o2755},
		"crw-rw----": {Type: "char", Mode: 0o660}, "prw-------": {Type: "fifo", Mode: 0o600},
	} {
		if got := modeOf(f); got != want {
			t.Errorf("%+v: got %s, want %s", f, got, want)
		}
	}
}

// TestNamesInLines checks that one file is one line, whatever its name is.
func TestNamesInLines(t *testing.T) {
	evil := "/a\n\x1b[2Jb"
	for _, line := range []string{
		fileLine(turnstone.FileInfo{Path: evil, Target: evil}),
		changeLine(turnstone.FileChange{Status: turnstone.ChangeRenamed, Path: evil,
			OldPath: evil}),
		changeLine(turnstone.FileChange{Status: turnstone.ChangeAdded, Path: evil}),
		replayText(&turnstone.ReplayReport{Changes: []turnstone.FileDifference{{Path: evil,
			What: "differs"}}}),
	} {
		if strings.Contains(line, evil) || strings.Contains(line, "\x1b") ||
			!strings.Contains(line, `"/a\n\x1b[2Jb"`) {
			t.Errorf("%q", line)
		}
	}
}

// TestReplayTextIsShort checks that a thousand differing files do not hide the rest, and are
// counted.
func TestReplayTextIsShort(t *testing.T) {
	changes := slices.Repeat([]turnstone.FileDifference{{Path: "/a.pyc", What: "differs"}}, 1000)
	text := replayText(&turnstone.ReplayReport{Changes: changes, More: 7, Cwd: true})
	if n := strings.Count(text, "/a.pyc"); n != 50 ||
		!strings.Contains(text, "and 957 more files") ||
		!strings.Contains(text, "the working directory") {
		t.Errorf("%d files named in:\n%s", n, text)
	}
	text = replayText(&turnstone.ReplayReport{Changes: changes[:50]})
	if strings.Contains(text, "more files") {
		t.Errorf("all are named:\n%s", text)
	}
}

// TestConflictsShowValues checks that a variable and a symlink show the value, not its digest.
func TestConflictsShowValues(t *testing.T) {
	value := func(v, typ string) *turnstone.ConflictVersion {
		return &turnstone.ConflictVersion{Type: typ, Target: v}
	}
	r := &turnstone.MergeReport{Outcome: turnstone.MergeConflicts, Conflicts: []turnstone.Conflict{
		{Path: "env:A", Kind: turnstone.ConflictEnv, Ours: value("one\n", ""),
			Theirs: value(strings.Repeat("x", 100), "")},
		{Path: "/l", Kind: turnstone.ConflictSymlink, Base: value("b", "symlink"),
			Ours: value("o", "symlink"), Theirs: value("t", "symlink")},
	}}
	got := mergeText(r, true)
	for _, want := range []string{
		`base -  ours "one\n"  theirs "` + strings.Repeat("x", 40) + `"…`,
		`base "b"  ours "o"  theirs "t"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "--markers") {
		t.Errorf("proposes what was given:\n%s", got)
	}
	if got := mergeText(r, false); !strings.Contains(got, "--markers") {
		t.Errorf("does not propose markers:\n%s", got)
	}
}
