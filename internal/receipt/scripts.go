package receipt

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lang/diagnose"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/internal/secret"
)

// scripts are the parsed scripts of a document's steps. They are parsed while the sandbox starts,
// because only their commands' places depend on them.
type scripts struct {
	doc     *document.Document
	secrets *secret.Set // masked in texts about commands
	done    chan struct{}

	parsed []*syntax.Script // valid after done
	seen   []diagnose.Step  // by step, up to the current step
}

func parseScripts(doc *document.Document, secrets *secret.Set) *scripts {
	s := &scripts{doc: doc, secrets: secrets, done: make(chan struct{}),
		parsed: make([]*syntax.Script, len(doc.Steps)),
		seen:   make([]diagnose.Step, len(doc.Steps))}
	go func() {
		defer close(s.done)
		for i, step := range doc.Steps {
			if !step.Skip {
				s.parsed[i] = syntax.ParseAs([]byte(step.Script), step.Language)
			}
		}
	}()
	return s
}

// script returns the script of a step.
func (s *scripts) script(step *document.Step) *syntax.Script {
	<-s.done
	return s.parsed[step.Index-1]
}

// ran records the name and directory of a step's script.
func (s *scripts) ran(step *document.Step, path, dir string) {
	s.seen[step.Index-1] = diagnose.Step{Name: step.Name, Path: path, Dir: dir,
		Script: s.script(step)}
}

// diagnoser returns a diagnoser that knows the steps so far.
func (s *scripts) diagnoser() *diagnose.Diagnoser { return diagnose.Steps(s.seen) }

func (s *scripts) place(step *document.Step, span syntax.Span) turnstone.Place {
	from, to := s.doc.Position(step, span.Start), s.doc.Position(step, span.End)
	return turnstone.Place{Line: from.Line, Column: from.Column, EndLine: to.Line,
		EndColumn: to.Column}
}
