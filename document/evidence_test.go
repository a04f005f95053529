package document

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const someEvidence = `{"payloadType":"x","payload":"eyJ9","signatures":[]}`

// TestEvidenceIsStripped: a receipt with evidence is the document that it was without, also after an
// editor changed the evidence, or added text below.
func TestEvidenceIsStripped(t *testing.T) {
	for _, text := range []string{
		"# A\n\n```bash\ntrue\n```\n", "# A\n\n```bash\ntrue\n```", "text\r\n", "",
		"- item\n\n  ```bash\n  true\n  ```\n", "> quote", "```\nan open fence\n", "<!-- open\n",
		"---\nimage: base\n---\n",
	} {
		plain, err := Parse("d.md", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		receipt := plain.Receipt(TurnInfo{ID: "t_1"}, nil)
		file := WithEvidence(receipt, []byte(someEvidence))
		if eol := firstEOL(receipt); eol == "\r\n" && strings.Count(string(file[len(receipt):]), "\r\n") != 4 ||
			eol != "\r\n" && bytes.ContainsRune(file[len(receipt):], '\r') {
			t.Errorf("%q: the evidence is %q", text, file[len(receipt):])
		}
		got, evidence, found := CutEvidence(file)
		if !found || !bytes.Equal(got, receipt) || string(evidence) != someEvidence {
			t.Errorf("%q: %v, %q", text, found, got)
		}
		if HasEvidence(receipt) || !HasEvidence(file) {
			t.Errorf("%q: evidence is not seen, or seen where there is none", text)
		}
		lf := strings.ReplaceAll(string(file[len(receipt):]), "\r", "")
		for what, changed := range map[string][]byte{
			"as written":   file,
			"LF":           []byte(string(receipt) + lf),
			"twice":        WithEvidence(file, []byte(someEvidence)),
			"CR only":      []byte(string(receipt) + strings.ReplaceAll(lf, "\n", "\r")),
			"CRLF":         []byte(string(receipt) + strings.ReplaceAll(lf, "\n", "\r\n")),
			"no last line": file[:len(file)-1],
			"more blanks":  append(bytes.Clone(file), " \n\n"...),
			"wrapped":      bytes.Replace(file, []byte(`"payload"`), []byte("\n  \"payload\""), 1),
		} {
			d, err := Parse("d.md", changed)
			if err != nil {
				t.Errorf("%q, %s: %v", text, what, err)
				continue
			}
			if clean := d.Clean(); string(clean) != text {
				t.Errorf("%q, %s: is %q", text, what, clean)
			}
			if again := d.Receipt(TurnInfo{ID: "t_1"}, nil); !bytes.Equal(again, receipt) {
				t.Errorf("%q, %s: the receipt is %q, was %q", text, what, again, receipt)
			}
		}
	}
	below, err := Parse("d.md", append(WithEvidence([]byte("# A\n"), []byte(someEvidence)),
		"\n```bash\ntrue\n```\n"...))
	if err != nil || len(below.Steps) != 1 || HasEvidence(below.Clean()) {
		t.Errorf("%v, %q", err, below.Clean())
	}
}

// written reports whether this version, or an earlier one, writes a file for a text and evidence.
func written(file, text, evidence []byte) bool {
	return bytes.Equal(file, WithEvidence(text, evidence)) ||
		string(file) == string(text)+"\n"+evidenceBegin+"\n"+string(evidence)+"\n"+evidenceEnd+"\n"
}

// TestEvidenceHasOneSpelling: whatever CutEvidence finds is written by WithEvidence.
func TestEvidenceHasOneSpelling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.SampledFrom([]string{"\n", "\r", "\r\n", "\n" + evidenceBegin + "\n{}\n" + evidenceEnd + "\n",
			"\r\n" + evidenceBegin + "\r\n{}\r\n" + evidenceEnd + "\r\n", "{}", "<", ">", "a", "-->", "<!-- turn:evidence", " "})).Draw(t, "parts")
		file := []byte(strings.Join(parts, ""))
		text, evidence, found := CutEvidence(file)
		if found && !written(file, text, evidence) {
			t.Fatalf("%q", file)
		}
		if d, err := Parse("d.md", file); err == nil {
			if again, err := Parse("d.md", d.Receipt(TurnInfo{ID: "t_1"}, nil)); err != nil {
				t.Fatalf("%q: its receipt %q: %v", file, d.Receipt(TurnInfo{}, nil), err)
			} else if _, _, found := CutEvidence(again.Source); found {
				t.Fatalf("%q: evidence stays", file)
			}
		}
	})
}

// TestEvidenceInAComment: evidence within a comment, and below it, is no document, because without the lower one the
// upper one would be taken for that of the receipt.
func TestEvidenceInAComment(t *testing.T) {
	const comment = "<!-- turn:evidence{}\n<!-- turn:evidence\n{}\n-->\n"
	for _, below := range []string{"\n<!-- turn:evidence", "\n<!-- turn:evidence\n{}", "\n  <!-- turn:evidence\n-->\n"} {
		var faults SyntaxErrors
		if _, err := Parse("d.md", []byte(comment+below)); !errors.As(err, &faults) || faults[0].Line < 4 {
			t.Errorf("%q: %v", below, err)
		}
	}
	for _, fine := range []string{comment + "\nwords\n", "\n<!-- turn:evidence\n{}\n-->\n\n<!-- turn:evidence", comment} {
		if _, err := Parse("d.md", []byte(fine)); err != nil {
			t.Errorf("%q: %v", fine, err)
		}
	}
}

// FuzzEvidence: evidence is cut at one place only, and a document that runs again is the text before
// it, whatever the text ends with.
func FuzzEvidence(f *testing.F) {
	for _, text := range []string{"# A\n\n```bash\ntrue\n```\n", "```\nopen", "<!-- open", "", "\r",
		"> <!-- turn:evidence\n{}\n-->", "- <!--\tturn:evidence\n", "\xef\xbb\xbf# A\r\n"} {
		f.Add([]byte(text), []byte(someEvidence))
		f.Add(WithEvidence([]byte(text), []byte(someEvidence)), []byte(someEvidence))
	}
	f.Fuzz(func(t *testing.T, text, evidence []byte) {
		if got, e, found := CutEvidence(text); found && !written(text, got, e) {
			t.Errorf("%q is another spelling of %q, %q", text, got, e)
		}
		if bytes.ContainsAny(evidence, "<>\r\n") {
			return
		}
		file := WithEvidence(text, evidence)
		got, e, found := CutEvidence(file)
		if !found || !bytes.Equal(got, text) || !bytes.Equal(e, evidence) || !HasEvidence(file) {
			t.Fatalf("%q: %v, %q, %q", file, found, got, e)
		}
		plain, err := Parse("f.md", text)
		with, errWith := Parse("f.md", file)
		if (err == nil) != (errWith == nil) {
			t.Fatalf("%q: %v, and with evidence %v", text, err, errWith)
		}
		if err == nil && !bytes.Equal(plain.Clean(), with.Clean()) {
			t.Errorf("%q: runs as %q, and with evidence as %q", text, plain.Clean(), with.Clean())
		}
	})
}
