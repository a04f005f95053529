package plan

import (
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
)

// Check is CheckFront and what doc could not have on the host with the state directory root: its
// limits, its locked policy, files that are not there. dir and piped are as in Request. It starts
// nothing, and makes no state directory.
func Check(root string, doc *document.Document, dir string, piped bool) error {
	if err := CheckFront(doc); err != nil {
		return err
	}
	c, err := config.Load(root)
	if err == nil {
		host := Host{Config: c, Limits: c.Limits.For(config.HostOf(existing(root)))}
		err = checkHost(Request{Document: doc, Dir: dir, Piped: piped}, host)
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
