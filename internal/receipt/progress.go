package receipt

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
)

// progress is the result of one step in the form that a resumed turn reads. It has passed through
// this process only, and the store checks its digest.
type progress struct {
	Result   document.StepResult          `json:"result"`
	Began    time.Time                    `json:"began,omitzero"`
	Ended    []turnstone.ConnectionReport `json:"ended,omitempty"`
	Network  *turnstone.NetworkReport     `json:"network,omitempty"`
	Commands *progressCommands            `json:"commands,omitempty"`
	Cwd      string                       `json:"cwd"` // of the next step
}

// progressCommands are the commands of a step.
type progressCommands struct {
	Reports  []turnstone.CommandReport `json:"reports,omitempty"`
	Failures []turnstone.FailureReport `json:"failures,omitempty"`
	Count    int64                     `json:"count"`
	Dropped  int64                     `json:"dropped,omitempty"`
	Untraced string                    `json:"untraced,omitempty"`
	Zero     time.Time                 `json:"zero,omitzero"`
}

// Progress returns the results of the first n steps, which do not run any more, for Restore.
func (s *Steps) Progress(n int) ([][]byte, error) {
	var all [][]byte
	for i := range n {
		p := progress{Result: s.results[i], Began: s.began[i], Ended: s.ended[i],
			Network: s.networks[i], Cwd: s.cwd}
		if c := s.commands[i]; c != nil {
			p.Commands = &progressCommands{Reports: c.reports, Failures: c.failures,
				Count: c.report.Commands, Dropped: c.report.Dropped, Untraced: c.report.Untraced,
				Zero: c.zero}
			if name := LeakIn(s.opts.Secrets.Written(), p.Commands); name != "" {
				p.Commands = &progressCommands{Count: c.report.Commands, Dropped: c.report.Commands,
					Untraced: "the commands are not kept, because they would hold the secret " + name,
					Zero:     c.zero}
			}
		}
		b, err := json.Marshal(p)
		if err != nil {
			return nil, turnstone.NewError("executor.checkpoint", turnstone.KindInternal,
				s.doc.Steps[i].Name, err)
		}
		all = append(all, b)
	}
	return all, nil
}

// Restore sets the results of the first steps, which Progress has returned. Their whole outputs are
// not available: see Restored.
func (s *Steps) Restore(all [][]byte) error {
	if len(all) > len(s.results) {
		return turnstone.Errorf("executor.resume", turnstone.KindIntegrity, s.doc.Name,
			"it has %d steps, and there are results of %d", len(s.results), len(all))
	}
	for i, b := range all {
		var p progress
		if err := json.Unmarshal(b, &p); err != nil {
			return turnstone.NewError("executor.resume", turnstone.KindIntegrity,
				fmt.Sprintf("the result of %s", s.doc.Steps[i].Name), err)
		}
		s.results[i], s.began[i], s.ended[i], s.networks[i] = p.Result, p.Began, p.Ended, p.Network
		if c := p.Commands; c != nil {
			s.commands[i] = &commands{reports: c.Reports, failures: c.Failures,
				shown: p.Result.Failures, table: p.Result.Commands, note: p.Result.CommandsNote,
				zero: c.Zero, report: &trace.Report{Commands: c.Count, Dropped: c.Dropped,
					Untraced: c.Untraced}}
		}
		s.cwd = p.Cwd
		s.restored = i + 1
		s.unlistLost(&s.results[i].Stdout)
		s.unlistLost(&s.results[i].Stderr)
	}
	return nil
}

// unlistLost removes the file of a restored output from the result if the file is gone.
func (s *Steps) unlistLost(o *document.Output) {
	if o.File == "" {
		return
	}
	if _, err := os.Stat(filepath.Join(s.opts.Dir, filepath.Base(o.File))); s.opts.Dir == "" ||
		err != nil {
		o.File = ""
		o.Note = "the file with the whole is gone"
	}
}

// Restored reports whether the result of step is one of Restore, and still has its outputs: the
// checkpoint then has them.
func (s *Steps) Restored(step *document.Step, stream turnstone.Stream) bool {
	if step.Index > s.restored {
		return false
	}
	res := &s.results[step.Index-1]
	if stream == turnstone.Stderr {
		return res.Stderr.Size > 0
	}
	return res.Stdout.Size > 0
}
