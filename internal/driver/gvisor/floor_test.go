package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/wire"
)

// benchmark is this test binary as a separate program, which the command bench measures beside
// `turn run`. Each mode prints its time, in microseconds, from the moment when the files are open
// and runsc has its configuration.
func benchmark(mode string) error {
	h, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return err
	}
	b, err := newBare(h)
	if err != nil {
		return err
	}
	defer b.remove()
	var took time.Duration
	switch mode {
	case "restore":
		took, err = b.restore(b.checkpoint)
	case "floor":
		took, err = b.floor()
	case "fork":
		took, err = b.fork()
	default:
		err = fmt.Errorf("unknown benchmark %q", mode)
	}
	if err == nil {
		fmt.Println(took.Microseconds())
	}
	return err
}

// bare is runsc without this package's checks and locks.
type bare struct {
	s          *Substrate
	dir        string
	shape      turnstone.Shape
	in         *images
	checkpoint string // the folder of the template's checkpoint
	made       []string
}

// newBare opens the most recently used snapshot of the template whose root image has the digest
// $TURNSTONE_BENCH_ROOT_DIGEST, for the default shape.
func newBare(h *statedir.Dir) (*bare, error) {
	binary, err := findRunsc(os.Getenv("TURN_RUNSC"))
	if err != nil {
		return nil, err
	}
	b := &bare{s: &Substrate{home: h, binary: binary}, in: &images{}}
	man, err := b.newest(h)
	if err != nil {
		return nil, err
	}
	b.shape = man.Identity.Shape
	for _, f := range []struct {
		to   **os.File
		path string
	}{{&b.in.root, rootOf(h, man.Identity)}, {&b.in.lower, os.Getenv("TURNSTONE_BENCH_ROOT")},
		{&b.in.empty, h.Path("gvisor", "empty.erofs")}} {
		if *f.to, err = os.Open(f.path); err != nil {
			return nil, err
		}
	}
	b.dir, err = os.MkdirTemp(h.Root, "bare-*")
	return b, err
}

// rootOf returns the path of the container's root with the agent of a snapshot.
func rootOf(h *statedir.Dir, id identity) string {
	layout := turnstone.DigestBytes([]byte(strings.Join(rootDirs(), "\x00") + "\x00" +
		string(id.Agent)))
	return h.Path("gvisor", "root-"+layout.Hex()[:32]+".erofs")
}

func (b *bare) newest(h *statedir.Dir) (newest manifest, err error) {
	all, _ := filepath.Glob(h.Path("snapshots", keyPrefix+"*", manifestFile))
	var at time.Time
	for _, path := range all {
		var man manifest
		text, rerr := os.ReadFile(path)
		st, serr := os.Stat(path)
		if rerr != nil || serr != nil || json.Unmarshal(text, &man) != nil ||
			string(man.Identity.Root) != os.Getenv("TURNSTONE_BENCH_ROOT_DIGEST") ||
			man.Identity.Shape != turnstone.DefaultShape() || !exists(rootOf(h, man.Identity)) ||
			st.ModTime().Before(at) {
			continue
		}
		newest, at, b.checkpoint = man, st.ModTime(), filepath.Dir(path)
	}
	if b.checkpoint == "" {
		return newest, errors.New("there is no snapshot to measure")
	}
	return newest, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// command returns a `runsc restore` of a container called name from the checkpoint.
func (b *bare) command(name, checkpoint string, args ...string) (*exec.Cmd, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config, err := spec(dir, b.in.paths(), b.shape)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
	}
	if err != nil {
		return nil, err
	}
	b.made = append(b.made, name)
	cmd := b.s.command(dir, append(append([]string{"restore", "--bundle=" + dir,
		"--image-path=" + checkpoint}, args...), name)...)
	cmd.ExtraFiles = b.in.list()
	return cmd, nil
}

// restore measures the time until runsc says that the sandbox runs.
func (b *bare) restore(checkpoint string) (time.Duration, error) {
	return b.restoreAs("bare", checkpoint)
}

func (b *bare) restoreAs(name, checkpoint string) (time.Duration, error) {
	cmd, err := b.command(name, checkpoint, "--detach")
	if err != nil {
		return 0, err
	}
	cmd.SysProcAttr.Pdeathsig = 0 // a detached process outlives its starter
	// Not a pipe, which the sandbox would hold open.
	log, err := os.OpenFile(filepath.Join(b.dir, name+".log"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }()
	// All three: root's runsc would give /dev/null to the sandbox's user.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = log, log, log
	began := time.Now()
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return 0, fmt.Errorf("runsc restore: %w: %s", err, said)
	}
	return time.Since(began), nil
}

// fork measures how long runsc takes to save a running sandbox, which continues, and to start
// another from the checkpoint.
func (b *bare) fork() (time.Duration, error) {
	if _, err := b.restore(b.checkpoint); err != nil {
		return 0, err
	}
	to := filepath.Join(b.dir, "forked")
	began := time.Now()
	cmd := b.s.command(filepath.Join(b.dir, "bare"), "checkpoint", "--image-path="+to,
		"--compression=none", "--leave-running", "bare")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("runsc checkpoint: %w: %s", err, out)
	}
	_, err := b.restoreAs("clone", to)
	return time.Since(began), err
}

// A conversation consists of the two pipes to the agent.
type conversation struct{ r, w *os.File }

func (c conversation) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c conversation) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c conversation) Close() error                { return errors.Join(c.r.Close(), c.w.Close()) }

// floor is the lower bound of `turn run`. The agent runs nothing before it is configured, so the
// configuration is included.
func (b *bare) floor() (time.Duration, error) {
	cmd, err := b.command("bare", b.checkpoint)
	if err != nil {
		return 0, err
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	console, err := os.CreateTemp(b.dir, "console-*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = console.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, console
	began := time.Now()
	ended := make(chan struct{})
	if err := subprocess.Start(cmd,
		subprocess.Options{Ended: func(error) { close(ended) }}); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
	}()
	_, _ = theirIn.Close(), theirOut.Close()
	err = runTrue(conversation{out, in})
	return time.Since(began), err
}

func runTrue(agent io.ReadWriteCloser) error {
	link, err := wire.NewLink(agent, true)
	if err != nil {
		return err
	}
	stream, err := link.Open()
	if err != nil {
		return err
	}
	client := wire.NewClient(stream)
	ctx := context.Background()
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // documented never to fail
	if _, err := client.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: entropy,
		Time:    time.Now().Format(time.RFC3339Nano),
		Scratch: scratchName, Hostname: "floor",
		MachineID: "0123456789abcdef0123456789abcdef"}); err != nil {
		return err
	}
	exit, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}},
		wire.Stdio{})
	if err == nil && exit.Exit.ExitCode != 0 {
		err = fmt.Errorf("true: exit %d", exit.Exit.ExitCode)
	}
	return err
}

func (b *bare) remove() {
	for _, name := range b.made {
		_ = b.s.command(filepath.Join(b.dir, name), "delete", "--force", name).Run()
	}
	b.in.close()
	_ = os.RemoveAll(b.dir)
}
