package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/layer"
)

// admit gives p the limits of this host, and refuses what is beyond them, and anything at
// all while the host's disk is nearly full. Nothing was started.
func (x *Host) admit(p *plan) error {
	c, err := x.config()
	if err != nil {
		return err
	}
	p.limits = c.Limits.For(config.HostOf(x.home.Root))
	if err := p.fitLimits(); err != nil {
		return err
	}
	p.room = func() error { return x.space(p.limits.FreeSpace, 1) }
	return p.room()
}

// fitLimits holds p to the host's limits. What nobody asked for is made smaller.
func (p *plan) fitLimits() error {
	l, def := p.limits, turnstone.DefaultShape()
	if l.CPUs == 0 { // not admitted yet
		return nil
	}
	if !p.timed {
		p.timeout = min(p.timeout, time.Duration(l.Timeout))
	}
	if p.shape.CPUs == def.CPUs && p.wants.cpus == 0 {
		p.shape.CPUs = min(p.shape.CPUs, l.CPUs)
	}
	if p.shape.Memory == def.Memory && p.wants.memory == 0 {
		p.shape.Memory = min(p.shape.Memory, turnstone.Bytes(l.Memory))
	}
	if p.shape.Disk == def.Disk && p.wants.disk == 0 {
		p.shape.Disk = min(p.shape.Disk, turnstone.Bytes(l.Disk))
	}
	switch {
	case p.shape.CPUs > l.CPUs:
		return beyond("cpus", p.shape.CPUs, l.CPUs)
	case p.shape.Memory > turnstone.Bytes(l.Memory):
		return beyond("memory", p.shape.Memory.Human(), turnstone.Bytes(l.Memory).Human())
	case p.shape.Disk > turnstone.Bytes(l.Disk):
		return beyond("disk", p.shape.Disk.Human(), turnstone.Bytes(l.Disk).Human())
	case p.timeout > time.Duration(l.Timeout):
		return beyond("timeout", p.timeout, time.Duration(l.Timeout))
	}
	// The operator may have raised the limit beyond what there is.
	if has := config.HostOf("").Memory; has > 0 && p.shape.Memory > has {
		return invalid("memory", "%s is more than the %s that this machine has", p.shape.Memory.Human(), has.Human())
	}
	return nil
}

func beyond(key string, asked, limit any) error {
	return turnstone.Errorf("executor.plan", turnstone.KindInvalid, key,
		"%v is more than the %v that this host gives a sandbox", asked, limit).
		WithHint(fmt.Sprintf("ask for less, or raise %s in [limits] of %s in the state directory", key, config.File))
}

// errLowSpace is an error of kind Exhausted: the host's disk is nearly full.
func errLowSpace(dir string, free, floor uint64) error {
	return turnstone.Errorf("executor.space", turnstone.KindExhausted, "the disk with "+dir,
		"%s are free, and %s have to stay free", turnstone.Bytes(free).Human(), turnstone.Bytes(floor).Human()).
		WithHint("make room (turn gc, turn template prune), or lower free_space in [limits] of " + config.File)
}

// freeSpace returns how large the file system with dir is, and what is free of it for us.
func freeSpace(dir string) (total, free uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}

// space is an error when less than 1/parts of floor is free of the disk with the state
// directory.
func (x *Repo) space(floor config.Space, parts uint64) error {
	total, free, err := x.statfs(x.home.Root)
	if err != nil {
		return err
	}
	if low := floor.Floor(total) / parts; free < low {
		return errLowSpace(x.home.Root, free, low)
	}
	return nil
}

// spaceEvery is how often a running turn looks at the free space. What a guest writes in
// that time has to fit below the floor.
const spaceEvery = time.Second

// watchSpace returns a context that ends, with an error of kind Exhausted as its cause, when
// the disk with the state directory is nearly full. stop ends the watch.
func (x *Host) watchSpace(ctx context.Context, floor config.Space) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(x.spaceEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			if err := x.space(floor, 1); turnstone.KindOf(err) == turnstone.KindExhausted {
				cancel(err)
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}

// lowSpace is why ctx, of watchSpace, ended, if that is why.
func lowSpace(ctx context.Context) error {
	var typed *turnstone.Error
	if cause := context.Cause(ctx); errors.As(cause, &typed) && typed.Op == "executor.space" {
		return cause
	}
	return nil
}

// slot takes one of the places for sandboxes that run at once. They are locks, so that a
// place is free again when its holder ends, in whatever way.
func (x *Host) slot(limit int) (*statedir.Lock, error) {
	if limit == 0 { // a sandbox that nobody admitted, in tests
		return nil, nil
	}
	if _, err := x.home.MkdirAll("slots"); err != nil {
		return nil, err
	}
	first := rand.IntN(limit) // else the later ones try all places before
	for i := range limit {
		l, err := statedir.TryAcquire(x.home.Path("slots", strconv.Itoa((first+i)%limit)))
		if l != nil || err != nil {
			return l, err
		}
	}
	return nil, turnstone.Errorf("executor.slots", turnstone.KindExhausted, "sandboxes",
		"%d run at once with this state directory, which is the most", limit).
		WithHint("wait for some to end, or remove some (turn sandbox ls), or raise sandboxes in [limits] of " + config.File)
}

// upperOptions bounds what an export may hold.
func (p *plan) upperOptions(size turnstone.Bytes) upperdir.Options {
	return upperdir.Options{Bytes: int64(size), Entries: int(p.limits.Entries), FileSize: int64(p.limits.FileSize), Room: p.room}
}

// ext4Options bounds what is read of a scratch disk.
func (p *plan) ext4Options() ext4.Options { return ext4.Options{Entries: p.limits.Entries} }

// bounded is opts with the bounds of this host.
func (p *plan) bounded(opts layer.Options) layer.Options {
	opts.MaxEntries, opts.MaxFile = int(p.limits.Entries), int64(p.limits.FileSize)
	return opts
}

// roomToImport is an error when nothing is to be imported: the disk is nearly full.
func (x *Repo) roomToImport() error {
	c, err := x.config()
	if err != nil {
		return err
	}
	return room(x.home.Root, c.Limits.FreeSpace)
}

// salvage keeps what the steps did until the host's disk was nearly full, if there is room
// for it, and returns why the turn ended.
func (r *run) salvage(ctx context.Context, s *Sandbox, low error) error {
	r.plan.room = func() error { return r.x.space(r.plan.limits.FreeSpace, 2) } // the rest is for others
	left, err := r.collect(ctx, s)
	r.clock.lap("collect")
	if err != nil {
		return turnstone.Errorf("executor.space", turnstone.KindExhausted, "",
			"%w; what the turn changed is not kept: %w", low, err).WithHint(turnstone.HintOf(low))
	}
	r.collected = left
	return low
}
