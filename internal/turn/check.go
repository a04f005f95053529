package turn

import (
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
)

// Check is plan.CheckFront and what doc could not have on this host: its limits, its locked
// policy, files that are not there. dir and piped are as in Request. It starts nothing, and
// makes no state directory.
func (x *Runner) Check(doc *document.Document, dir string, piped bool) error {
	if err := plan.CheckFront(doc); err != nil {
		return err
	}
	c, err := x.config()
	if err == nil {
		host := plan.Host{Config: c, Limits: c.Limits.For(config.HostOf(existing(x.home.Root)))}
		err = plan.Check(plan.Request{Document: doc, Dir: dir, Piped: piped}, host)
	}
	if err != nil {
		return turnstone.NewError("executor.check", turnstone.KindInvalid, doc.Name, err).
			WithHint(turnstone.HintOf(err))
	}
	return nil
}

// existing is dir, or the nearest folder above it that is there, on whose disk it would be.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// Asks lists what a run of doc on this host, without any flags, would not grant: see plan.Asks.
func (x *Runner) Asks(doc *document.Document, piped bool) ([]turnstone.Ask, error) {
	host, err := x.config()
	if err != nil {
		return nil, err
	}
	return plan.Asks(doc, piped, host), nil
}
