package driver

import (
	"context"
	"fmt"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// A Kernel is the kernel that guests boot. It is looked up once: the choice of a substrate and its
// machines use the same kernel, even if the user's file changes in between. It is safe for
// concurrent use.
type Kernel struct {
	home     *statedir.Dir
	choice   kernel.Choice
	progress func(string)

	mu    sync.Mutex
	found *kernel.Kernel // nil: not looked up yet
}

// KernelIn returns the kernel that choice names, stored in h. progress may be nil.
func KernelIn(h *statedir.Dir, choice kernel.Choice, progress func(string)) *Kernel {
	return &Kernel{home: h, choice: choice, progress: progress}
}

// Guest returns the kernel's properties before a machine exists, for Chooser.Kernel. It looks up a
// user's kernel, and downloads nothing.
func (k *Kernel) Guest(ctx context.Context) (substrate.GuestKernel, error) {
	if !k.choice.Own() {
		return substrate.GuestKernel{}, nil
	}
	found, _, err := k.find(ctx)
	if err != nil {
		return substrate.GuestKernel{}, err
	}
	return guest(found, k.choice), nil
}

// Fill returns m with the kernel and with the initramfs that contains agent.
func (k *Kernel) Fill(ctx context.Context, m substrate.Machine,
	agent kernel.Program) (substrate.Machine, error) {
	found, dir, err := k.find(ctx)
	if err != nil {
		return m, err
	}
	m.Kernel, m.KernelDigest, m.KernelIs = found.Vmlinux, found.Digest,
		guest(found, k.choice).KernelKind
	if m.Determinism != nil {
		found = found.ForDisksInMemory()
	}
	m.Initramfs, m.InitDigest, err = found.Initramfs(ctx, dir, agent)
	return m, err
}

// find returns the kernel, and the folder for files made from it. After an error, the next call
// looks again.
func (k *Kernel) find(ctx context.Context) (found *kernel.Kernel, dir string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if dir, err = k.home.MkdirAll("kernel"); err != nil || k.found != nil {
		return k.found, dir, err
	}
	k.found, err = kernel.Ensure(ctx, dir, k.choice, k.progress)
	return k.found, dir, err
}

// guest returns the properties of k that a substrate needs.
func guest(k *kernel.Kernel, choice kernel.Choice) substrate.GuestKernel {
	g := substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: k.Own, Test: k.Test,
		Release: k.Release}}
	if k.Own {
		g.Digest, g.File, g.Modules = k.Digest, choice.Image, choice.Modules
	}
	return g
}

// CheckRunning compares the known properties of a kernel's image with the agent's report on the
// running kernel: its release, and whether programs can read its memory. An error, of kind
// Integrity, means that the machine must not be used, because its isolation would be reported
// wrongly. The agent must report before anything else runs in the guest.
func CheckRunning(k substrate.KernelKind, release string, open bool) error {
	runs := console.Printable(release[:min(len(release), maxRelease)])
	image := "its image names no release"
	if k.Release != "" {
		image = "its image is of " + k.Release
	}
	e := turnstone.NewError("substrates.kernel", turnstone.KindIntegrity, "guest kernel", nil).
		WithHint(k.Advice())
	if k.File != "" {
		e.Subject += " " + k.File
	}
	switch {
	case kernel.IsTest(release) && !k.Test:
		e.Err = fmt.Errorf("the running kernel reports that it is %s, a test kernel, and %s", runs,
			image)
	case k.Release != "" && release != k.Release:
		e.Err = fmt.Errorf("the running kernel reports that it is %s, and %s", orNothing(runs),
			image)
	case open && !k.Test:
		e.Err = fmt.Errorf("programs can read the memory of the running kernel (%s), as that of "+
			"a test kernel, and %s", orNothing(runs), image)
	default:
		return nil
	}
	return e
}

// maxRelease bounds a quoted release, in bytes: utsname has room for that many.
const maxRelease = 64

func orNothing(release string) string {
	if release == "" {
		return "of no release"
	}
	return release
}
