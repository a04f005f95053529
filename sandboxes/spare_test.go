package sandboxes_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A spareMachine can be claimed. The image determines its behavior.
type spareMachine struct {
	*sandboxtest.Machine
	image string
}

func (m spareMachine) Adopt(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec) (
	sandboxes.Details, error) {
	d := sandboxes.Details{Substrate: "fake", Workdir: string(id) + strings.Join(spec.Env, ",")}
	switch m.image {
	case "stubborn":
		return d, turnstone.Errorf("test", turnstone.KindUnavailable, "the machine", "stays as it is")
	case "strict":
		return d, turnstone.Errorf("test", turnstone.KindInvalid, "cwd", "is no directory")
	case "slow":
		<-ctx.Done()
		return d, context.Cause(ctx)
	}
	return d, nil
}

func (m spareMachine) Ping(context.Context) error {
	if m.image == "mute" {
		return errors.New("it does not answer")
	}
	return nil
}

func (m spareMachine) Client() *wire.Client { return clientOf(m) }

// clientOf opens a connection, which ends with the machine.
func clientOf(m sandboxes.Machine) *wire.Client {
	s, err := m.Connect()
	if err != nil {
		panic(err)
	}
	return wire.NewClient(s)
}

// A realSpare is a machine with a real agent, which can be claimed.
type realSpare struct{ *realAgent }

func (realSpare) Adopt(context.Context, turnstone.SandboxID, sandboxes.Spec) (sandboxes.Details,
	error) {
	return sandboxes.Details{Substrate: "fake"}, nil
}

func (realSpare) Ping(context.Context) error { return nil }

func (m realSpare) Client() *wire.Client { return clientOf(m) }

// openSpare is openFake for a spare sandbox.
func openSpare(spec sandboxes.Spec) (sandboxes.Machine, sandboxes.Details, error) {
	d := sandboxes.Details{Substrate: "fake"}
	if spec.Image == "agent" {
		r, err := openReal()
		return realSpare{r}, d, err
	}
	m, err := sandboxtest.New(sandboxtest.Serve(fake(false)))
	if err != nil {
		return nil, d, err
	}
	switch spec.Image {
	case "broken":
		return nil, d, turnstone.Errorf("test", turnstone.KindUnavailable, "the machine", "out of steam")
	case "plain": // cannot be claimed
		return m, d, nil
	}
	return spareMachine{m, spec.Image}, d, nil
}

func spareSpec(image string) sandboxes.Spec {
	return sandboxes.Spec{Image: image, Shape: turnstone.DefaultShape()}
}

func prepare(t *testing.T, s *sandboxes.Store, image string) *sandboxes.Spare {
	t.Helper()
	p, err := s.Prepare(t.Context(), spareSpec(image), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // of a sandbox that was not claimed
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// files lists the folder of the sandboxes.
func files(t *testing.T, s *sandboxes.Store) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestClaim(t *testing.T) {
	s := newStore(t)
	p, err := s.Prepare(t.Context(), spareSpec("fine"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := names(t, s); len(all) != 0 {
		t.Errorf("a spare sandbox is listed: %v", all)
	}
	if err := p.Ping(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	sp := spec("fine")
	sp.ID, sp.Name, sp.Env, sp.TTL = turnstone.NewSandboxID(), "work", []string{"A=1"}, time.Hour
	c, err := p.Claim(t.Context(), sp, nil)
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.Get(sp.ID)
	if err != nil || i.Name != "work" || i.State != sandboxes.StateReady || i.ID != sp.ID ||
		i.Workdir != string(sp.ID)+"A=1" || i.Expires == nil || c.Info.ID != sp.ID {
		t.Errorf("%+v, %v", i, err)
	}
	use(t, s, sp.ID, "hello")
	if all := files(t, s); !slices.Equal(all, []string{string(sp.ID)}) {
		t.Errorf("the folder has %v", all)
	}
	sp.ID = turnstone.NewSandboxID()
	if _, err := p.Claim(t.Context(), sp, nil); err == nil {
		t.Error("a sandbox was claimed twice")
	}
	if i, err := s.Get(i.ID); err != nil || i.State != sandboxes.StateReady {
		t.Errorf("after another claim: %+v, %v", i, err)
	}
}

// TestClaimSealed: a claim admits its client to the channel, by the key that the sandbox had before,
// and nobody else.
func TestClaimSealed(t *testing.T) {
	s := newStore(t)
	p := prepare(t, s, "agent")
	own, ok := p.Key()
	if !ok {
		t.Fatal("it has no key")
	}
	other, _ := prepare(t, s, "agent").Key()
	if own == other {
		t.Error("two sandboxes have one key")
	}
	c := channel.ClientConfig{Key: channel.NewKeyPair(), Server: channel.PublicKey(own),
		Statement: turnstone.DigestBytes([]byte("statement"))}
	sp := spec("agent")
	sp.ID = turnstone.NewSandboxID()
	if _, err := p.Claim(t.Context(), sp, &sandboxes.Seal{Statement: c.Statement,
		Clients: []sandboxes.ChannelKey{sandboxes.ChannelKey(c.Key.Public)},
		Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	stranger := c
	stranger.Key = channel.NewKeyPair()
	for _, one := range []struct {
		config channel.ClientConfig
		may    bool
	}{{c, true}, {stranger, false}} {
		stream, err := s.OpenChannel(t.Context(), sp.ID)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := channel.Client(t.Context(), stream, one.config)
		if (err == nil) != one.may {
			t.Errorf("%t: %v", one.may, err)
		}
		if err == nil {
			client := wire.NewClient(conn)
			if _, err := client.SandboxGetVersion(t.Context()); err != nil {
				t.Error(err)
			}
			_ = client.Close()
		}
	}
	if again, err := s.Seal(t.Context(), sp.ID, sandboxes.Seal{}); err != nil || again != own {
		t.Errorf("%v; the key became another one: %t", err, again != own)
	}
}

// TestClaimWithBadSeal: a claim whose statement the agent refuses leaves nothing.
func TestClaimWithBadSeal(t *testing.T) {
	s := newStore(t)
	sp := spec("agent")
	sp.ID = turnstone.NewSandboxID()
	_, err := prepare(t, s, "agent").Claim(t.Context(), sp, &sandboxes.Seal{
		Clients: make([]sandboxes.ChannelKey, 1)})
	if err == nil {
		t.Error("it was claimed")
	}
	if all := files(t, s); len(all) != 0 {
		t.Errorf("the folder has %v", all)
	}
}

// TestRefusedClaims: the error is the one of Create, and nothing remains.
func TestRefusedClaims(t *testing.T) {
	s := newStore(t)
	taken := create(t, s, sandboxes.Spec{Image: "fine", Name: "taken", Shape: turnstone.DefaultShape()})
	for _, c := range []struct {
		image  string
		change func(*sandboxes.Spec)
		kind   turnstone.Kind
	}{
		{"fine", func(s *sandboxes.Spec) { s.Name = "taken" }, turnstone.KindInvalid},
		{"fine", func(s *sandboxes.Spec) { s.ID = taken.ID }, turnstone.KindInvalid},
		{"fine", func(s *sandboxes.Spec) { s.ID = "" }, turnstone.KindInvalid},
		{"fine", func(s *sandboxes.Spec) { s.Env = []string{"no"} }, turnstone.KindInvalid},
		{"fine", func(s *sandboxes.Spec) { s.Secrets = []string{"A=1"} }, turnstone.KindUnavailable},
		{"stubborn", nil, turnstone.KindUnavailable},
		{"strict", nil, turnstone.KindInvalid},
	} {
		p := prepare(t, s, c.image)
		sp := spec(c.image)
		sp.ID = turnstone.NewSandboxID()
		if c.change != nil {
			c.change(&sp)
		}
		if _, err := p.Claim(t.Context(), sp, nil); turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: %v (%s)", c.image, err, turnstone.KindOf(err))
		}
		if all := files(t, s); !slices.Equal(all, []string{string(taken.ID)}) {
			t.Errorf("%s: the folder has %v", c.image, all)
		}
	}
	use(t, s, taken.ID, "still there")
}

func TestClaimCanceled(t *testing.T) {
	s := newStore(t)
	p := prepare(t, s, "slow")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel) //wait: any moment is right
	sp := spec("slow")
	sp.ID = turnstone.NewSandboxID()
	s.KillAfter = 100 * time.Millisecond
	if _, err := p.Claim(ctx, sp, nil); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("%v", err)
	}
	if all := files(t, s); len(all) != 0 {
		t.Errorf("the folder has %v", all)
	}
}

func TestSparesThatFail(t *testing.T) {
	s := newStore(t)
	for _, image := range []string{"broken", "plain"} {
		if p, err := s.Prepare(t.Context(), spareSpec(image), nil); err == nil {
			t.Errorf("%s was made", image)
			_ = p.Close()
		}
		if all := files(t, s); len(all) != 0 {
			t.Errorf("the folder has %v", all)
		}
	}
	p := prepare(t, s, "mute")
	if err := p.Ping(t.Context(), time.Hour); err != nil {
		t.Errorf("it was asked: %v", err)
	}
	if err := p.Ping(t.Context(), 0); err == nil {
		t.Error("a sandbox that does not answer is alive")
	}
	sp := spareSpec("fine")
	sp.Env = []string{"A=1"}
	if _, err := s.Prepare(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a spare sandbox has an environment: %v", err)
	}
}

// TestSpareDies: the claim finds out, and nothing remains.
func TestSpareDies(t *testing.T) {
	s := newStore(t)
	p := prepare(t, s, "fine")
	lock := filepath.Join(s.Dir(), files(t, s)[0], "lock")
	kill(t, lock)
	<-p.Ended()
	if err := p.Ping(t.Context(), time.Hour); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
	sp := spec("fine")
	sp.ID = turnstone.NewSandboxID()
	if _, err := p.Claim(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
	if all := files(t, s); len(all) != 0 {
		t.Errorf("the folder has %v", all)
	}
}

// kill ends the process whose command names the sandbox of a lock.
func kill(t *testing.T, lock string) {
	t.Helper()
	id := strings.TrimPrefix(filepath.Base(filepath.Dir(lock)), ".spare-")
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), holderName) || !strings.Contains(string(b), id) {
			continue
		}
		pid := 0
		for _, c := range filepath.Base(filepath.Dir(path)) {
			pid = 10*pid + int(c-'0')
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no holder was found")
}

// ownerName is the process name of a process that makes a spare sandbox and is then killed.
const ownerName = "turnstone-test-owner"

// ownerMain makes a spare sandbox in the state directory that it is given, says so, and waits.
func ownerMain() int {
	s := sandboxes.NewStore(os.Args[1])
	s.Holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{holderName}}
	if _, err := s.Prepare(context.Background(), spareSpec("fine"), nil); err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		return 1
	}
	_, _ = os.Stdout.WriteString("ready\n")
	select {}
}

// TestOwnerDies: a spare sandbox ends with the process that made it, and leaves nothing.
func TestOwnerDies(t *testing.T) {
	dir := t.TempDir()
	owner := exec.Command("/proc/self/exe")
	owner.Args, owner.Stderr = []string{ownerName, dir}, os.Stderr
	out, err := owner.StdoutPipe()
	if err == nil {
		err = owner.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	s := sandboxes.NewStore(dir)
	if all := files(t, s); len(all) != 1 || !strings.HasPrefix(all[0], ".spare-") {
		t.Errorf("the folder has %v", all)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	for until := time.Now().Add(time.Minute); len(files(t, s)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the folder has %v", files(t, s))
		}
	}
}

// TestSpareIsFollowed: the state of a claimed sandbox shows whether a command runs.
func TestSpareIsFollowed(t *testing.T) {
	s := newStore(t)
	p := prepare(t, s, "fine")
	sp := spec("fine")
	sp.ID = turnstone.NewSandboxID()
	if _, err := p.Claim(t.Context(), sp, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := s.Dial(t.Context(), sp.ID)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	defer func() { _ = c.Close() }()
	stdin := c.NewStream()
	if _, err := c.ProcessStart(t.Context(), &wire.ProcessStartParams{Argv: []string{"cat"},
		ProcessID: "p", StdinStream: stdin, StdoutStream: c.NewStream(),
		StderrStream: c.NewStream()}); err != nil {
		t.Fatal(err)
	}
	await(t, s, sp.ID, sandboxes.StateRunning)
}
