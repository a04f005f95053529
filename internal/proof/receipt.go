package proof

import (
	"bytes"
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// unsigned is the error that means "not signed" rather than "does not verify".
func unsigned(subject string) *turnstone.Error {
	return turnstone.Errorf("verify", turnstone.KindNotFound, subject, "is not signed").
		WithHint("only receipts that turn run wrote have evidence at their end")
}

// Attach returns a receipt with its evidence.
func Attach(text []byte, s *Signed) []byte { return document.WithEvidence(text, s.Envelope) }

// OpenReceipt checks a receipt with its evidence: that its signatures are those of the keys in its
// statement, and that every byte before the evidence is what was signed. name is for errors. A
// receipt without evidence is an error of kind KindNotFound, every other error of kind Integrity.
func OpenReceipt(ctx context.Context, name string, file []byte) (*Signed, error) {
	_, s, err := OpenText(ctx, name, file)
	return s, err
}

// OpenText is OpenReceipt, and returns the text that was signed too.
func OpenText(ctx context.Context, name string, file []byte) (text []byte, s *Signed, err error) {
	text, envelope, found := document.CutEvidence(file)
	if !found {
		// A receipt in UTF-16 or UTF-32 has its evidence between zeros.
		if document.HasEvidence(bytes.ReplaceAll(file, []byte{0}, nil)) &&
			bytes.IndexByte(file, 0) >= 0 {
			return nil, nil, turnstone.Errorf("verify", turnstone.KindIntegrity, name,
				"was written in another encoding, such as UTF-16").
				WithHint("verify the file as turn wrote it, in UTF-8")
		}
		if document.HasEvidence(file) {
			return nil, nil, turnstone.Errorf("verify", turnstone.KindIntegrity, name,
				"its evidence is not its last lines, or was changed: line endings, white space, "+
					"or text below it").
				WithHint("verify the file as turn wrote it, before an editor changed it")
		}
		return nil, nil, unsigned(name)
	}
	if s, err = Open(ctx, envelope); err != nil {
		return nil, nil, turnstone.NewError("verify", turnstone.KindIntegrity, name, err).
			WithHint(turnstone.HintOf(err))
	}
	if have := turnstone.DigestBytes(text); have != s.Subjects.Receipt {
		if otherEndings(text, s.Subjects.Receipt) {
			return nil, nil, turnstone.Errorf("verify", turnstone.KindIntegrity, name,
				"its line endings are not those of the text that was signed").
				WithHint("verify the file as turn wrote it, before an editor or git changed its line endings")
		}
		return nil, nil, turnstone.Errorf("verify", turnstone.KindIntegrity, name,
			"its text is not the text that was signed: it is %s, and turn %d (%s) was signed "+
				"with %s", have.Short(), s.Predicate.Turn.Number, s.Predicate.Turn.ID,
			s.Subjects.Receipt.Short()).
			WithHint("somebody changed the receipt, or took the evidence of another")
	}
	return text, s, nil
}

// otherEndings reports whether a text with LF for CRLF, or the reverse, is the one that was signed.
func otherEndings(text []byte, signed turnstone.Digest) bool {
	lf := bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	return turnstone.DigestBytes(lf) == signed || turnstone.DigestBytes(bytes.ReplaceAll(lf, []byte("\n"), []byte("\r\n"))) == signed
}
