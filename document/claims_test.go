package document

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// TestClaims checks that what a receipt says can be read back from it, in every container and with
// every line ending, and that what a second run cannot repeat does not count.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		eol := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "line ending")
		prefix := rapid.SampledFrom([]string{"", "> ", "  "}).Draw(t, "container")
		src := "# Title" + eol
		if prefix == "  " {
			src += "- item" + eol
		}
		n := rapid.IntRange(1, 4).Draw(t, "steps")
		for range n {
			for _, line := range []string{"```bash", "echo hello", "```"} {
				src += prefix + line + eol
			}
			src += eol
			if prefix == "  " {
				src = strings.TrimSuffix(src, eol)
			}
		}
		d, err := Parse("x.md", []byte(src))
		if err != nil || len(d.Steps) != n {
			t.Fatalf("%v\n%s", err, src)
		}
		info := TurnInfo{ID: "t_0123456789abcdefgh", Result: turnstone.ResultFailed,
			Image: "base", Start: "turn 3", Parents: []turnstone.TurnID{"t_1", "t_2"},
			FSHash: turnstone.DigestBytes(nil), Session: "s", Number: 4,
			Secrets: []string{"A", "B"}}
		results := make([]StepResult, n)
		for i := range results {
			code := rapid.IntRange(0, 255).Draw(t, "exit code")
			results[i] = StepResult{Status: turnstone.StepFailed, ExitCode: &code,
				Duration: time.Duration(rapid.Int64Range(0, 1e14).Draw(t, "duration")),
				Note:     rapid.SampledFrom([]string{"", "stdout · x", "exit 3"}).Draw(t, "note"),
				Stdout:   claimedOutput(t), Stderr: claimedOutput(t)}
			if rapid.Bool().Draw(t, "failure") {
				results[i].Failures = []CommandFailure{{Line: 3, Text: "stdout", ExitCode: 1,
					Excerpt: SourceLine{Number: 3, Text: "stdout", From: 0, To: 6}}}
			}
		}
		_, claims, err := ReadReceipt("x.md", d.Receipt(info, results))
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Receipt(info, results))
		}
		if i := claims.Info; i.ID != info.ID || i.Result != info.Result || i.Start != info.Start ||
			i.FSHash != info.FSHash || len(i.Parents) != 2 || i.Number != 4 || len(i.Secrets) != 2 {
			t.Fatalf("%+v", i)
		}
		for i, c := range claims.Steps {
			r := results[i]
			if c.Status != r.Status || c.ExitCode == nil || *c.ExitCode != *r.ExitCode ||
				c.Source != turnstone.DigestBytes([]byte(d.Steps[i].Script)) {
				t.Fatalf("step %d: %+v\n%s", i+1, c, d.Receipt(info, results))
			}
			for _, o := range []struct {
				got  OutputClaim
				want Output
			}{{c.Stdout, r.Stdout}, {c.Stderr, r.Stderr}} {
				text, cut := o.want.Text()
				if isBinary(o.want.Head) {
					text = ""
				}
				if o.got.Text != strings.TrimSuffix(text, "\n") ||
					cut != (o.got.Digest != "") || cut && o.got.Digest != o.want.Digest {
					t.Fatalf("%+v of %q\n%s", o.got, o.want.Head, d.Receipt(info, results))
				}
			}
		}
	})
}

// claimedOutput draws an output: lines that look like parts of a receipt, a long one, or bytes.
func claimedOutput(t *rapid.T) Output {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "hello\n", "stderr\n```text\nx\n```\n",
		"<!-- /turn:result -->\n", "\n\nx\n\n", "a\x00b", strings.Repeat("line\n", 500)}),
		rapid.StringMatching("[a-z`*<>\\\\ ]{1,40}")).Draw(t, "output")
	text = strings.TrimRight(text, " ")
	b := []byte(text)
	return Output{Head: b, Size: int64(len(b)), Lines: countLF(b), Digest: turnstone.DigestBytes(b)}
}

// TestNoClaims checks that a file that is no receipt is rejected.
func TestNoClaims(t *testing.T) {
	for name, src := range map[string]string{
		"never run":   "# Title\n\n```bash\ntrue\n```\n",
		"no map":      "---\nturn: yes\n---\n",
		"no result":   "---\nturn:\n  id: t_1\n---\n",
		"twice":       "---\nturn:\n  result: passed\n  result: failed\n---\n",
		"no digest":   "---\nturn:\n  result: passed\n  fs: sha256:12\n---\n",
		"nested":      "---\nturn:\n  result: [passed]\n---\n",
		"no markdown": "---\nturn:\n  result: passed\n---\n```bash\n",
	} {
		if _, c, err := ReadReceipt("x.md", []byte(src)); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	// A step that was added below a receipt has no claim.
	_, c, err := ReadReceipt("x.md", []byte("---\nturn:\n  result: passed\n---\n```bash\ntrue\n```\n"))
	if err != nil || len(c.Steps) != 1 || c.Steps[0].Source != "" {
		t.Errorf("%+v, %v", c, err)
	}
}

func FuzzReadReceipt(f *testing.F) {
	f.Add([]byte("---\nturn:\n  result: passed\n---\n```bash\ntrue\n```\n" +
		"<!-- turn:result step=1 source=sha256:" + strings.Repeat("0", 64) + " -->\n" +
		"**passed** · exit 0 · 1 ms\\\nstdout\n```text\nx\n```\n<!-- /turn:result -->\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		d, c, err := ReadReceipt("x.md", src)
		if err == nil && len(d.Steps) != len(c.Steps) {
			t.Errorf("%d steps, %d claims", len(d.Steps), len(c.Steps))
		}
	})
}
