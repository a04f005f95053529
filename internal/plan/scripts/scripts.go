// Package scripts reads the scripts of a document before a run, on every system.
package scripts

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// DefaultImage is the image of a document that names none.
const DefaultImage = "base"

// HasDocument reports a missing document as an error of kind Invalid.
func HasDocument(doc *document.Document) error {
	if doc != nil {
		return nil
	}
	return turnstone.Errorf("executor.plan", turnstone.KindInvalid, "document", "there is none").
		WithHint("set the document of the request")
}

// Check reports the steps of doc whose script bash cannot parse, as a document.SyntaxErrors.
// Skipped steps and steps with the attribute unparsed are not checked. Any other error means that
// the check itself failed.
func Check(ctx context.Context, doc *document.Document) error {
	if err := HasDocument(doc); err != nil {
		return err
	}
	var faults document.SyntaxErrors
	for _, step := range doc.Steps {
		if step.Skip || step.Unparsed {
			continue
		}
		fault, err := syntax.Check(ctx, "", step.Language, []byte(step.Script))
		if err != nil {
			return err
		}
		if fault == nil {
			continue
		}
		from, to := doc.Position(step, fault.Span.Start), doc.Position(step, fault.Span.End)
		faults = append(faults, document.SyntaxError{File: doc.Name, Line: from.Line,
			Column: from.Column, Msg: step.Name + ": " + fault.Message,
			Hint:   "nothing has run; a step marked unparsed runs as it is",
			Source: doc.SourceLine(from.Line, from.Column, to.Line, to.Column)})
	}
	if faults != nil {
		return faults
	}
	return nil
}
