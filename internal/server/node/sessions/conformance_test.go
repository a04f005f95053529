package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/remote/atnode"
)

func mergeRequest(from, into string) executor.MergeRequest {
	return executor.MergeRequest{From: from, Into: into}
}

func rangeRequest(ref string) executor.RangeRequest { return executor.RangeRequest{Ref: ref} }

// both is what the local and the remote executor have in common.
type both interface {
	Sessions(ctx context.Context) ([]turnstone.SessionInfo, error)
	Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error)
	Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error)
	Expand(ctx context.Context, ref, named string) (string, error)
	CurrentSession(ctx context.Context, named string) (turnstone.Session, error)
	NoteUse(ctx context.Context, ref string)
	Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error)
	Receipt(ctx context.Context, ref string) ([]byte, error)
	Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error
	ListFiles(ctx context.Context, ref, name string, recursive bool,
		each func(turnstone.FileInfo) error) error
	OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error)
	CopyOut(ctx context.Context, ref, name, dest string, skipped func(name, why string)) error
	Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error)
	Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error)
	Prepare(ctx context.Context, ref string) error
	Fork(ctx context.Context, ref, name string) (turnstone.Branch, error)
	ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error)
	Tag(ctx context.Context, ref, name string) (turnstone.Tag, error)
	Untag(ctx context.Context, nameOrID, tag string) error
	Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error)
	RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
	RemoveBranch(ctx context.Context, nameOrID, branch string) error
	SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport, error)
	ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
	Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport, error)
	Export(ctx context.Context, req executor.ExportRequest, w io.Writer) (
		*turnstone.ExportReport, error)
	Import(ctx context.Context, req executor.ImportRequest, r io.Reader) (
		*turnstone.ImportReport, error)
	Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport, error)
	VerifyReceipt(ctx context.Context, name string, file []byte, trust []string) (
		*turnstone.VerifyReport, error)
	SignTurn(ctx context.Context, ref string) (*turnstone.VerifiedTurn, error)
	Heads(ctx context.Context, nameOrID string) ([]turnstone.LoggedHead, error)
	Close() error
	Rerunner
	Keeper
}

var (
	_ both     = (*executor.Executor)(nil)
	_ both     = (*atnode.Executor)(nil)
	_ Executor = (*executor.Executor)(nil)
)

// A result is what an operation gave.
type result struct {
	Value any
	Told  []string
	Err   string
	Kind  turnstone.Kind
	Op    turnstone.Op
	Hint  string
}

// teller notes progress.
type teller struct {
	mu   sync.Mutex
	told []string
}

func (w *teller) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf(format, args...))
}
func (w *teller) Preparing(what string)         { w.note("preparing %s", what) }
func (w *teller) StepStarted(st *document.Step) { w.note("started %s %d", st.Name, st.Line) }
func (w *teller) skipped(name, why string)      { w.note("skipped %s: %s", name, why) }
func (w *teller) StepOutput(st *document.Step, s turnstone.Stream, p []byte) {
	w.note("%s %d %q", st.Name, s, p)
}
func (w *teller) StepFinished(st *document.Step, r turnstone.StepReport) {
	w.note("finished %s %s", st.Name, r.Status)
}

// A call is one use of a method.
type call1 struct {
	method string
	do     func(ctx context.Context, x both, w *teller) (any, error)
}

// calls are the uses of each method, in an order in which changes follow what they change.
func calls(t *testing.T) []call1 {
	none := func(err error) (any, error) { return nil, err }
	var bundle bytes.Buffer // that the executor itself exported
	all := []call1{
		{"Sessions", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Sessions(ctx) }},
		{"Trace", func(ctx context.Context, x both, w *teller) (any, error) {
			return none(x.Trace(ctx, "research@2", func(l turnstone.TraceLine) error {
				w.note("%+v", l)
				return nil
			}))
		}},
		{"Compare", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.Compare(ctx, []string{"research@1", "research@2", "research@side"})
		}},
		{"Prepare", func(ctx context.Context, x both, _ *teller) (any, error) {
			return none(x.Prepare(ctx, "research@9"))
		}},
		{"Heads", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Heads(ctx, "research") }},
		{"SignTurn", func(ctx context.Context, x both, _ *teller) (any, error) { return x.SignTurn(ctx, "research@2") }},
		{"ForkLive", func(ctx context.Context, x both, _ *teller) (any, error) { return x.ForkLive(ctx, "research", "live") }},
		{"Fork", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Fork(ctx, "research@1", "forked") }},
		{"Fork", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Fork(ctx, "research@1", "forked") }},
		{"Tag", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Tag(ctx, "research@1", "v1") }},
		{"Untag", func(ctx context.Context, x both, _ *teller) (any, error) { return none(x.Untag(ctx, "research", "v1")) }},
		{"Untag", func(ctx context.Context, x both, _ *teller) (any, error) { return none(x.Untag(ctx, "research", "v1")) }},
		{"RemoveBranch", func(ctx context.Context, x both, _ *teller) (any, error) {
			return none(x.RemoveBranch(ctx, "research", "forked"))
		}},
		{"Usage", func(ctx context.Context, x both, _ *teller) (any, error) {
			u, err := x.Usage(ctx)
			if u != nil {
				u.Database, u.Store.Stored, u.Turns, u.Images = 0, 0, 0, 0 // depend on the time
			}
			return u, err
		}},
		{"Fsck", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Fsck(ctx) }},
		{"Homes", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Homes(ctx) }},
		{"HasHome", func(ctx context.Context, x both, _ *teller) (any, error) { return none(x.HasHome(ctx, "h")) }},
		{"RemoveHome", func(ctx context.Context, x both, _ *teller) (any, error) { return none(x.RemoveHome(ctx, "h")) }},
		{"PruneTemplates", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.PruneTemplates(ctx, executor.TemplatePrune{DryRun: true})
		}},
		{"RemoveTemplate", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.RemoveTemplate(ctx, executor.TemplateRemoval{Name: "no-such"})
		}},
		{"VerifyReceipt", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.VerifyReceipt(ctx, "r.md", []byte("# no receipt\n"), nil)
		}},
	}
	for _, ref := range []string{"research", "no-such", ""} {
		all = append(all, call1{"Session", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Session(ctx, ref) }},
			call1{"CurrentSession", func(ctx context.Context, x both, _ *teller) (any, error) {
				x.NoteUse(ctx, "research@1")
				return x.CurrentSession(ctx, ref)
			}})
	}
	for _, ref := range []string{"research", "research@1", "research@side", "resarch", "research@2~9", "t_0"} {
		all = append(all, call1{"Log", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Log(ctx, ref, 0) }},
			call1{"Log", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Log(ctx, ref, 1) }},
			call1{"Show", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Show(ctx, ref) }},
			call1{"Receipt", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Receipt(ctx, ref) }},
			call1{"Verify", func(ctx context.Context, x both, _ *teller) (any, error) {
				return x.Verify(ctx, turnstone.VerifyRequest{Ref: ref})
			}},
			call1{"Export", func(ctx context.Context, x both, w *teller) (any, error) {
				var b bytes.Buffer
				r, err := x.Export(ctx, executor.ExportRequest{Session: ref, Full: true}, &b)
				w.note("%d bytes", b.Len())
				return r, err
			}})
	}
	for _, ref := range []string{"-", "@2", "turn-2", "-~1", "research@1", "@", "-@side"} {
		for _, named := range []string{"", "research", "none"} {
			all = append(all, call1{"Expand", func(ctx context.Context, x both, _ *teller) (any, error) {
				x.NoteUse(ctx, "research")
				return x.Expand(ctx, ref, named)
			}})
		}
	}
	for _, path := range []string{"/workspace", "a", "/workspace/d/b", "/none", "/", "/workspace/d/link"} {
		all = append(all,
			call1{"ListFiles", func(ctx context.Context, x both, w *teller) (any, error) {
				return none(x.ListFiles(ctx, "research@2", path, true, func(f turnstone.FileInfo) error {
					w.note("%+v", f)
					return nil
				}))
			}},
			call1{"ListFiles", func(ctx context.Context, x both, w *teller) (any, error) {
				return none(x.ListFiles(ctx, "research@2", path, false, func(turnstone.FileInfo) error {
					return errors.New("enough")
				}))
			}},
			call1{"OpenFile", func(ctx context.Context, x both, _ *teller) (any, error) {
				f, err := x.OpenFile(ctx, "research@2", path)
				if err != nil {
					return nil, err
				}
				b, err := io.ReadAll(f)
				return string(b), errors.Join(err, f.Close())
			}},
			call1{"CopyOut", func(ctx context.Context, x both, w *teller) (any, error) {
				dest := t.TempDir()
				err := x.CopyOut(ctx, "research@2", path, dest+"/", w.skipped)
				slices.Sort(w.told)
				return listing(t, dest), err
			}})
	}
	for _, req := range []turnstone.DiffRequest{{From: "research@2"}, {From: "research@1", To: "side",
		Stat: true, Text: true, Results: true}, {From: "research@1", To: "none"}} {
		all = append(all, call1{"Diff", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Diff(ctx, req) }})
	}
	for _, req := range []executor.MergeRequest{{From: "side", Session: "research", DryRun: true},
		{From: "research@side", DryRun: true, NoFF: true, Default: turnstone.SideOurs},
		{From: "research@side", Paths: map[string]turnstone.Side{"/workspace": turnstone.SideTheirs},
			Message: "merged"}, {From: "none"}} {
		all = append(all, call1{"Merge", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Merge(ctx, req) }})
	}
	all = append(all,
		call1{"Verify", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.Verify(ctx, turnstone.VerifyRequest{Ref: "research", All: true,
				Trust: []string{testKey}})
		}},
		call1{"Verify", func(ctx context.Context, x both, _ *teller) (any, error) {
			list := filepath.Join(t.TempDir(), "allowed_signers")
			if err := os.WriteFile(list, []byte("# a comment\n\nnode "+testKey+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return x.Verify(ctx, turnstone.VerifyRequest{Ref: "research@2", Trust: []string{list}})
		}},
		call1{"Import", func(ctx context.Context, x both, w *teller) (any, error) {
			bundle.Reset()
			if _, err := x.Export(ctx, executor.ExportRequest{Session: "research", Full: true},
				&bundle); err != nil {
				return nil, err
			}
			return x.Import(ctx, executor.ImportRequest{Progress: w.Preparing}, bytes.NewReader(bundle.Bytes()))
		}},
		call1{"SealSessions", func(ctx context.Context, x both, _ *teller) (any, error) {
			_, err := x.SealSessions(ctx, []string{"research"}) // a host sends no report with an error
			return nil, err
		}},
		call1{"ShredSession", func(ctx context.Context, x both, _ *teller) (any, error) { return x.ShredSession(ctx, "research") }},
		call1{"Rename", func(ctx context.Context, x both, _ *teller) (any, error) { return x.Rename(ctx, "research", "renamed") }},
		call1{"RemoveSession", func(ctx context.Context, x both, _ *teller) (any, error) { return x.RemoveSession(ctx, "renamed") }},
		call1{"Import", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.Import(ctx, executor.ImportRequest{As: "again", Build: turnstone.BuildNone,
				Progress: w.Preparing}, bytes.NewReader(bundle.Bytes()))
		}},
		call1{"Import", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.Import(ctx, executor.ImportRequest{}, strings.NewReader("no bundle"))
		}},
		call1{"GC", func(ctx context.Context, x both, _ *teller) (any, error) {
			r, err := x.GC(ctx, turnstone.GCRequest{DryRun: true, Now: time.Now().Add(time.Hour)})
			if r != nil {
				r.Freed = 0
			}
			return r, err
		}},
	)
	return append(all, reruns(t)...)
}

const testKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPwW8Zg2ZQoXlJ0c0Ahs9gN1NhT4bxNfR8pZP4yWQZ8q"

// listing describes all files below dir.
func listing(t *testing.T, dir string) (all []string) {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		text := ""
		if e.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		all = append(all, fmt.Sprintf("%s %s %q", strings.TrimPrefix(path, dir), e.Type(), text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unstable matches what differs between two runs of the same operation.
var unstable = regexp.MustCompile(`[ts]_[0-9a-v]{18}|\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)` +
	`|"duration_ms":\d+|sha256:[0-9a-f]{64}|/tmp/[A-Za-z0-9_/.-]+`)

func perform(ctx context.Context, x both, c call1) result {
	w := &teller{}
	v, err := c.do(ctx, x, w)
	r := result{Value: v, Told: w.told}
	if reflect.ValueOf(v).Kind() != reflect.Pointer && err != nil {
		r.Value = nil // only a report comes with an error
	}
	if err != nil {
		r.Err, r.Kind, r.Hint = err.Error(), turnstone.KindOf(err), turnstone.HintOf(err)
		var te *turnstone.Error
		if errors.As(err, &te) {
			r.Op = te.Op
		}
	}
	return r
}

// chmodKeys restores what os.CopyFS does not keep.
func chmodKeys(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(filepath.Join(dir, "keys", "node"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestConformance does the same on two copies of a state directory, beside the store and over the
// wire, and compares what it gives.
func TestConformance(t *testing.T) {
	s := newScene(t)
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	chmodKeys(t, copied)
	local := player{openExecutor(t, copied)}
	far := s.remote(s.serve(player{s.x}), s.operator)
	used := map[string]bool{}
	for i, c := range calls(t) {
		used[c.method] = true
		want, got := perform(t.Context(), local, c), perform(t.Context(), far, c)
		a, err := json.Marshal(want)
		b, err2 := json.Marshal(got)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		a, b = unstable.ReplaceAll(a, []byte("X")), unstable.ReplaceAll(b, []byte("X"))
		if !bytes.Equal(a, b) {
			t.Errorf("%d: %s:\n%s\n%s", i, c.method, a, b)
		}
	}
	skip := []string{"Close", "NoteUse", "Allow", "Admit", "Templates", "Operates", "Owns"}
	for i := range reflect.TypeFor[*atnode.Executor]().NumMethod() {
		if m := reflect.TypeFor[*atnode.Executor]().Method(i).Name; !used[m] &&
			!slices.Contains(skip, m) {
			t.Errorf("%s is not in this test", m)
		}
	}
}
