package machine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/wire"
)

// warmUp runs a turn's typical work once, before the snapshot: steps in a throwaway overlay of the
// template, driven over the protocol by its own client. A restored clone then has the shell's pages
// in the page cache and the agent's heap and code in memory. No visible effect remains.
func warmUp(opt agent.Options) (err error) {
	merged := filepath.Join(warmDir, "root")
	if err := unix.Mount("tmpfs", warmDir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(warmDir, unix.MNT_DETACH)) }()
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(warmDir, d), 0o755); err != nil {
			return err
		}
	}
	if err := mountOverlay(merged, overlayOptions, []string{lowerDir},
		filepath.Join(warmDir, "upper"), filepath.Join(warmDir, "work")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(merged, unix.MNT_DETACH)) }()
	for _, d := range kernelDirs {
		dst := filepath.Join(merged, d)
		if err := os.MkdirAll(dst, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		defer unix.Unmount(dst, unix.MNT_DETACH)
	}
	opt.Chroot = merged
	defer os.RemoveAll("/run/turn")
	return exercise(opt)
}

// exercise drives an agent through a client, as a host does.
func exercise(opt agent.Options) error {
	opt.Configure = func(p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
		_, err := checkConfigure(p)
		return &wire.SandboxConfigureResult{BootID: strings.Repeat("0", 36)}, err
	}
	a, err := agent.New(opt)
	if err != nil {
		return err
	}
	defer a.Close()
	near, far := net.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, far) }()
	link, err := wire.NewLink(near, true)
	if err != nil {
		return err
	}
	err = drive(ctx, link)
	return errors.Join(err, link.Close(), <-served)
}

// drive opens a connection and runs the commands of a turn.
func drive(ctx context.Context, link *wire.Link) error {
	s, err := link.Open()
	if err != nil {
		return err
	}
	c := wire.NewClient(s)
	defer c.Close()
	if _, err := c.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: make([]byte, 64),
		Time:     time.Unix(2e9, 1).Format(time.RFC3339Nano),
		Hostname: "warm", MachineID: strings.Repeat("0", 32), Scratch: "warm",
		Network: &wire.SandboxNetwork{}}); err != nil {
		return err
	}
	spans := false // the host parses the script itself
	for _, script := range []string{"true\n",
		"cd /tmp; export A=1; echo a; echo b >&2; ls | cat\n"} {
		p := wire.ShellExecuteParams{Name: "warm", Spans: &spans}
		if _, err := c.Execute(ctx, p, script, wire.Stdio{Out: io.Discard, Err: io.Discard},
			nil); err != nil {
			return err
		}
	}
	_, err = c.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}},
		wire.Stdio{})
	return err
}
