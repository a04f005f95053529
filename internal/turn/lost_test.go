package turn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/wire"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestReceiptIsSynced checks that the receipt and the files that it names are synced to disk, and
// that a failure to write or sync them is reported.
func TestReceiptIsSynced(t *testing.T) {
	x := testRunner(&statedir.Dir{Root: t.TempDir()})
	var synced []string
	x.host.Repo.Fault = func(op string) error {
		if op == "turns.sync" {
			synced = append(synced, op)
			return syscall.EIO
		}
		return nil
	}
	told := &tellings{}
	r := &run{host: x.host, plan: &plan.Plan{}, doc: parse(t, "# A turn\n\n```bash\ntrue\n```\n"),
		obs: told, clock: provision.NewStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now(),
		Result: turnstone.ResultPassed}
	r.folder = ok[*repo.TurnFolder](t)(x.host.Repo.OpenTurnFolder(r.info.ID))
	defer r.folder.Close()
	r.plan.Host.Limits.Output = 1 << 20
	r.openSteps()
	running := r.steps.Start(r.doc.Steps[0])
	_, _ = running.Begin().Out.Write([]byte(random(300<<10, 1)))
	running.End(&wire.StepEnd{})
	if err := r.steps.Sync(); err != nil {
		t.Error(err)
	}
	if _, err := repo.LockFolder(r.folder.Dir, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err,
		syscall.EWOULDBLOCK) {
		t.Errorf("the folder of a turn that runs is not locked: %v", err)
	}
	r.checkpoint()
	if len(told.said) != 0 || len(synced) != 0 {
		t.Errorf("%q, %q", told.said, synced)
	}
	r.keepReceipt(nil)
	if len(told.said) != 1 || !strings.Contains(told.said[0], "input/output error") {
		t.Errorf("%q", told.said)
	}
	if err := os.Remove(filepath.Join(r.folder.Dir, "step-1.stdout")); err != nil {
		t.Fatal(err)
	}
	if r.keepReceipt(nil); len(told.said) != 2 || !strings.Contains(told.said[1], "step-1.stdout") {
		t.Errorf("a file that is gone: %q", told.said)
	}
	if err := os.RemoveAll(r.folder.Dir); err != nil {
		t.Fatal(err)
	}
	r.checkpoint()
	r.checkpoint()
	if len(told.said) != 3 || !strings.Contains(told.said[2], "no such file") {
		t.Errorf("%q", told.said)
	}
}

// tellings is an observer that records the messages outside of steps.
type tellings struct {
	observer
	said []string
}

func (o *tellings) Preparing(what string) { o.said = append(o.said, what) }
