package process

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"
)

// Freeze stops every process that any group holds, also those to come, and returns
// when all stand still (cgroup-v2.rst, cgroup.freeze). They can be killed meanwhile.
func (g *Groups) Freeze(ctx context.Context) error {
	if err := writeFile(filepath.Join(g.dir, "cgroup.freeze"), "1"); err != nil {
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
func (g *Groups) Thaw() error { return writeFile(filepath.Join(g.dir, "cgroup.freeze"), "0") }
