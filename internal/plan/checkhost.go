package plan

import (
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
)

// Check is CheckFront, and reports what the host with the state directory root cannot serve: its
// limits, its locked policy, missing files. dir and piped are Request.Dir and Request.Piped. It
// starts nothing, and creates no state directory.
func Check(root string, doc *document.Document, dir string, piped bool) error {
	if err := CheckFront(doc); err != nil {
		return err
	}
	c, err := config.Load(root)
	if err == nil {
		host := Host{Config: c, Limits: c.Limits.For(config.HostOf(existing(root)))}
		err = checkHost(Request{Document: doc, Dir: dir, Piped: piped}.Completed(), host)
	}
	if err != nil {
		return turnstone.NewError("executor.check", turnstone.KindInvalid, doc.Name, err).
			WithHint(turnstone.HintOf(err))
	}
	return nil
}

// existing returns dir, or its nearest existing parent, which is on the same disk.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
