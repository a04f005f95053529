package gvisor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// newSubstrate returns the substrate with the runsc that `make build` builds.
func newSubstrate(t testing.TB, h *statedir.Dir) *Substrate {
	t.Helper()
	s, err := New(t.Context(), h, Options{Binary: builtRunsc(t),
		Progress: func(what string) { t.Log(what) }})
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	return s
}

func builtRunsc(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "..", "bin", binaryName))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var network = wire.SandboxNetwork{Address: "10.0.2.15/24", Gateway: "10.0.2.2",
	DNS: []string{"10.0.2.3"}}

// testMachine returns a machine of the template base. TURNSTONE_TEST_AGENT names the program of
// another agent than the agent in the last build of turn.
func testMachine(t testing.TB, h *statedir.Dir) substrate.Machine {
	m := turntest.Machine(t, h, "base")
	if path := os.Getenv("TURNSTONE_TEST_AGENT"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m.AgentDigest, m.Agent = turnstone.DigestBytes(b), func() ([]byte, error) { return b, nil }
	}
	return m
}

//testrun:user
func TestConformance(t *testing.T) {
	h := turntest.Home(t)
	m := testMachine(t, h)
	substratetest.Run(t, newSubstrate(t, h), substratetest.Config{Machine: m, Network: network,
		End: endSandbox,
		Elsewhere: func(t *testing.T) substrate.Substrate {
			return newSubstrate(t,
				&statedir.Dir{Root: t.TempDir()})
		}})
}

// TestProofLeavesDevNull checks that a proof does not change /dev/null: root's runsc changes the
// owner of its standard streams.
func TestProofLeavesDevNull(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	turntest.Home(t) // finds runsc
	s, err := New(t.Context(), h, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var before, after unix.Stat_t
	if err := unix.Stat(os.DevNull, &before); err != nil {
		t.Fatal(err)
	}
	if ok, why := s.Usable(t.Context()); !ok {
		t.Fatal(why)
	}
	if err := unix.Stat(os.DevNull, &after); err != nil || after.Uid != before.Uid ||
		after.Gid != before.Gid || after.Mode != before.Mode {
		t.Errorf("%s was %d:%d %o and is %d:%d %o, %v", os.DevNull, before.Uid, before.Gid,
			before.Mode, after.Uid, after.Gid, after.Mode, err)
	}
}
