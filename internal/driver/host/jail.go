package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Wall separates a driver's program that a guest has broken out into from the host.
type Wall string

// A Jail describes the confinement of a driver's program here, and why it is not better.
type Jail struct {
	Wall   Wall      `json:"wall"`
	Reason string    `json:"reason"` // why it is not the best wall; empty: it is
	When   time.Time `json:"when"`
	Host   string    `json:"host"` // what the result depends on
}

// NoLasts is how long a missing jail is remembered: an administrator may repair the host.
const NoLasts = time.Minute

// FindJail returns the first of walls, best first, behind which try starts the driver's program;
// the last needs no trial. The result is remembered in the file called name in h's cache until
// program, which identifies the program, the host's kernel, the user or the settings of user
// namespaces change; a wall that is not the best is remembered for a minute. An error is ctx's.
func FindJail(ctx context.Context, h *statedir.Dir, name, program string, walls []Wall,
	try func(context.Context, Wall) error) (Jail, error) {
	on := fmt.Sprintf("%s|%s|%d|%s", program, Kernel(), os.Geteuid(), NamespaceSettings())
	path := h.Path("cache", name)
	var known Jail
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &known) == nil &&
		known.Host == on &&
		(known.Wall == walls[0] || time.Since(known.When).Abs() < NoLasts) {
		return known, nil
	}
	j := Jail{When: time.Now().UTC(), Host: on}
	for i, w := range walls {
		if j.Wall = w; i == len(walls)-1 {
			break
		}
		err := try(ctx, w)
		if err == nil {
			break
		}
		if i == 0 {
			j.Reason = WhyNoJail(err)
		}
	}
	if ctx.Err() != nil {
		return j, ctx.Err()
	}
	b, _ := json.Marshal(j)                 // plain data always encodes
	_ = filestamp.WriteFile(path, b, 0o600) // a result that is not remembered is determined again
	return j, nil
}
