package corpus

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/turntest"
)

// seen prints what a program commonly reads of its system, and the files with a time that is neither
// the turn's clock nor the time of all images, but the host's. Those that docs/determinism.md lists
// are left out: they have the time of the sandbox's snapshot.
const seen = "```bash name=seen\n" + `hostname; date +%FT%H:%M; date -d "$(uptime -s)" +%F
touch now; date -r now +%F
find / -xdev -newermt 2026-01-02 -not -type d -not -path /etc/resolv.conf
find /etc /home /root /tmp /usr /var /workspace -newermt 2026-01-02 -type d
` + "```\n\n```bash name=random\n" + `echo "$RANDOM $SRANDOM $(mktemp -u) $(cat /etc/machine-id /proc/sys/kernel/random/boot_id)"
cat /proc/sys/kernel/random/uuid
` + "```\n"

// TestSeen checks the values that docs/determinism.md names, and that seed and clock decide them.
func TestSeen(t *testing.T) {
	r := newRunner(t, turnstone.TierSeeded)
	run := func(front string) []turnstone.StepReport {
		t.Helper()
		doc, err := document.Parse("seen.md",
			[]byte("---\ndeterministic: true\n"+front+"---\n\n"+seen))
		if err != nil {
			t.Fatal(err)
		}
		turn, err := r.x.Run(t.Context(), executor.Request{Document: doc, Dir: r.dir,
			Substrate: driver.GVisor}, r)
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		if err := r.Forget(t.Context(), turn); err != nil {
			t.Error(err)
		}
		return turn.Steps
	}
	a, b := run("seed: 1\n"), run("seed: 2\n")
	if got, want := a[0].Stdout, "turn\n2026-01-01T00:00\n2025-12-31\n2026-01-01\n"; got != want {
		t.Errorf("a program sees\n%swant\n%s%s", got, want, a[0].Stderr)
	}
	if a[0].Stdout != b[0].Stdout {
		t.Errorf("with another seed a program sees\n%s", b[0].Stdout)
	}
	x, y := strings.Fields(a[1].Stdout), strings.Fields(b[1].Stdout)
	if len(x) != len(y) {
		t.Fatalf("%q, %q", x, y)
	}
	for i := range x {
		if x[i] == y[i] {
			t.Errorf("two seeds have the same random value %s", x[i])
		}
	}
	if c := run("seed: 1\n"); c[1].Stdout != a[1].Stdout {
		t.Errorf("the same seed has the random values\n%sand\n%s", a[1].Stdout, c[1].Stdout)
	}
	if d := run("clock: 2031-05-06T07:08:00Z\n"); !strings.Contains(d[0].Stdout,
		"\n2031-05-06T07:08\n") {
		t.Errorf("with another clock a program sees\n%s", d[0].Stdout)
	}
}

// ofSnapshot are the programs that see when the sandbox's snapshot was taken: times of device files
// and mounts, and the memory and CPU time of the first process.
var ofSnapshot = []string{"processes", "top", "system-file-times", "device-files"}

// TestAnotherHome runs what programs see of their system in a state directory whose snapshots were
// taken at another time.
func TestAnotherHome(t *testing.T) {
	r := newRunner(t, turnstone.TierSeeded)
	all := groups(t)
	i := slices.IndexFunc(all, func(g Group) bool { return g.Name == "system" })
	g := all[i].Apart(turnstone.TierSeeded)[0]
	g.Programs = slices.DeleteFunc(g.Programs, func(p Program) bool {
		return slices.Contains(ofSnapshot, p.Name)
	})
	first := r.run(t, g, turnstone.TierSeeded)

	shared, home := turntest.Home(t).Root, t.TempDir()
	for _, part := range []string{"templates", "kernel", "cache"} {
		if err := os.Symlink(filepath.Join(shared, part), filepath.Join(home, part)); err != nil {
			t.Fatal(err)
		}
	}
	x, err := executor.Open(t.Context(), executor.Options{Dir: home})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	other := &Runner{x, r.dir, r.progress}
	turn, err := other.Run(t.Context(), g, turnstone.TierSeeded)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range steps(first, turn) {
		t.Error(d)
	}
	if first.FSHash != turn.FSHash {
		t.Errorf("the FS hash is %s, and %s", first.FSHash, turn.FSHash)
	}
}
