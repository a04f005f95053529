// Package doctor finds out what a machine can run, why not more, and what to do
// about it.
package doctor

import (
	"context"
	"os"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// A Status is how bad a Finding is.
type Status string

// The statuses.
const (
	StatusOK   Status = "ok"   // as it should be
	StatusWarn Status = "warn" // turns run, but slower or with something missing
	StatusFail Status = "fail" // no turn can run, or no template can be built and none is there
)

// A Finding is one thing that was looked at.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`        // one line
	Fix    string `json:"fix,omitempty"` // one shell command that mends it; empty: nothing to mend, or no command can
}

// Check looks at everything. It starts programs only to ask for their versions, and one
// empty sandbox of gVisor where that was not tried before; it waits for nothing longer
// than a few seconds, and changes nothing but what is remembered of that. Where KVM has
// not been tried with a guest yet it says so: the first turn does that.
func Check(ctx context.Context, h *statedir.Dir) []Finding {
	c := &checker{home: h, root: "/", uid: os.Getuid()}
	if cfg, err := config.Load(h.Root); err == nil { // else there is a finding
		c.choice = cfg.GuestKernel()
	}
	c.guest, c.guestErr = driver.KernelIn(h, c.choice, nil).Guest(ctx)
	var found []Finding
	for _, check := range []func(context.Context) []Finding{
		c.platform, c.config, c.substrates, c.disk, c.memory, c.kernel, c.templates, c.snapshots, c.builder, c.authorities,
	} {
		found = append(found, check(ctx)...)
	}
	return found
}

// Usable reports whether turns can run in spite of what was found.
func Usable(found []Finding) bool {
	for _, f := range found {
		if f.Status == StatusFail {
			return false
		}
	}
	return true
}

// A checker looks at one machine. Its root and uid are fields so that tests can
// show it another machine's files.
type checker struct {
	home *statedir.Dir
	root string
	uid  int

	choice   kernel.Choice         // of the guest kernel, by config.toml
	guest    substrate.GuestKernel // that guests boot, where it can be had
	guestErr error                 // why it cannot be had

	built bool // a template is built; set by the check of templates, which comes before builder
}

func one(name string, status Status, detail, fix string) []Finding {
	return []Finding{{Name: name, Status: status, Detail: detail, Fix: fix}}
}
