package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Freeze stops every process that any group holds, also those to come, and returns
// when all stand still (cgroup-v2.rst, cgroup.freeze). They can be killed meanwhile. A
// kernel without that, as gVisor's, has all processes of the machine stopped by signal.
// Thaw must follow, also when it fails.
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
		n, err := readSmall(events, buf[:])
		if err != nil {
			return err
		}
		if strings.Contains(string(buf[:n]), "frozen 1") {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("some processes do not stand still")
		case <-time.After(pause):
		}
	}
}

// Thaw lets them go on.
func (g *Groups) Thaw() error {
	err := writeFile(filepath.Join(g.dir, "cgroup.freeze"), "0")
	if errors.Is(err, os.ErrNotExist) {
		g.hold.release()
		return nil
	}
	return err
}
