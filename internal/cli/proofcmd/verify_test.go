package proofcmd

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestGroups: turns are listed by who signed them, and two keys with one name are two signers.
func TestGroups(t *testing.T) {
	node := turnstone.Voucher{Role: "node", Key: "SHA256:aaaaaaaaaaaaaaaa", Name: "build1"}
	twin := turnstone.Voucher{Role: "node", Key: "SHA256:aaaaaaaaaaaaaaab", Name: "build1"}
	caller := turnstone.Voucher{Role: "caller", Key: "SHA256:cccccccccccccccc"}
	later := caller
	later.Later = true
	var turns []turnstone.VerifiedTurn
	for i, by := range [][]turnstone.Voucher{{node, caller}, {node}, {node}, {twin}, {node},
		{node, later}, {node, caller}} {
		turns = append(turns, turnstone.VerifiedTurn{Number: 7 - i, Vouchers: by})
	}
	var got []string
	for _, g := range groups(turns) {
		got = append(got, g.by+": "+ranges(g.turns))
	}
	want := "node build1 (SHA256:aaaaaaaaaaaa) alone: 3, 5-6\n" +
		"node build1 (SHA256:aaaaaaaaaaaa) alone: 4\n" +
		"node build1 (SHA256:aaaaaaaaaaaa) and caller (SHA256:cccccccccccc): 1, 7\n" +
		"node build1 (SHA256:aaaaaaaaaaaa) and later caller (SHA256:cccccccccccc): 2"
	if all := strings.Join(got, "\n"); all != want {
		t.Errorf("%s\nwant\n%s", all, want)
	}
}

// TestNamesFile: what could name a turn is no file.
func TestNamesFile(t *testing.T) {
	for what, file := range map[string]bool{"s": false, "s@1": false, "s@fix/auth": false,
		"-@fix/auth": false, "@x": false, "t_06h03ngqkbsd": false, "turn-1": false, "~1": false,
		"receipt.txt": false, "\u0455@1": false, "receipt.md": true, "./s@1": true, "/tmp/s@1": true,
		"dir/s": true, "../s@1": true, "": false} {
		if namesFile(what) != file {
			t.Errorf("%q: %v", what, !file)
		}
	}
}
