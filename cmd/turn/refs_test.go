package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/cli"
)

func TestShortRefs(t *testing.T) {
	var c commandLine
	parser, _, err := cli.NewParser(&c, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"show -@3":                         "show @3",
		"-v show -@fix/auth~2":             "-v show @fix/auth~2",
		"ls -R -:/workspace":               "ls -R @main:/workspace",
		"show -~1":                         "show @main~1",
		"show -":                           "show -",
		"log --graph -n 3 -@2":             "log --graph -n 3 @2",
		"merge -@x -m -~x":                 "merge @x -m -~x",
		"merge --message -@x -@y":          "merge --message -@x @y",
		"merge --message=-@x -@y":          "merge --message=-@x @y",
		"session tag -@1 v":                "session tag @1 v",
		"exec grep -@3 -:x":                "exec grep -@3 -:x",
		"exec -- -@3":                      "exec -- -@3",
		"sandbox exec web grep -@3":        "sandbox exec web grep -@3",
		"cp -- -@3:/x .":                   "cp -- -@3:/x .",
		"run --session - - -q --network o": "run --session - - -q --network o",
	} {
		if got := strings.Join(cli.ShortRefs(parser.Model.Node, strings.Fields(in)),
			" "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	word := rapid.SampledFrom([]string{"show", "log", "exec", "sandbox", "session", "merge", "run",
		"-", "--", "-@1", "-~", "-:", "-m", "--message", "-", "-q", "x", "", "---", "--=", "-ä"})
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(word, 0, 8).Draw(t, "args")
		got := cli.ShortRefs(parser.Model.Node, slices.Clone(args))
		if len(got) != len(args) {
			t.Fatalf("%q became %q", args, got)
		}
		for i := range got {
			if short := len(args[i]) > 1 &&
				strings.ContainsAny(args[i][1:2], "@~:"); got[i] != args[i] && !short {
				t.Fatalf("%q became %q", args, got)
			}
		}
	})
}
