package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Freeze freezes every process in any group, including later processes, and returns when all are
// frozen (cgroup-v2.rst, cgroup.freeze). They can be killed meanwhile. On a kernel without this
// feature, such as gVisor's, all processes of the machine are stopped by signal. Thaw must follow,
// also after an error.
func (g *Groups) Freeze(ctx context.Context) error {
	err := writeFile(filepath.Join(g.dir, "cgroup.freeze"), "1")
	if errors.Is(err, os.ErrNotExist) {
		return g.hold.hold(ctx)
	}
	if err != nil {
		return err
	}
	events := filepath.Join(g.dir, "cgroup.events")
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		var buf [256]byte
		n, err := ReadSmall(events, buf[:])
		if err != nil {
			return err
		}
		if strings.Contains(string(buf[:n]), "frozen 1") {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("some processes could not be stopped")
		case <-time.After(pause):
		}
	}
}

// Thaw lets the processes continue.
func (g *Groups) Thaw() error {
	err := writeFile(filepath.Join(g.dir, "cgroup.freeze"), "0")
	if errors.Is(err, os.ErrNotExist) {
		g.hold.release()
		return nil
	}
	return err
}
