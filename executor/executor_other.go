//go:build !linux || turnstone_client

package executor

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan/scripts"
	"turnstone.dev/turnstone/internal/platform"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// DefaultImage is the image of a document that names none: the template "base".
const DefaultImage = scripts.DefaultImage

// An Executor checks documents and receipts: this system runs no sandboxes. Its other methods
// return an error of kind KindUnavailable.
type Executor struct{ dir *statedir.Dir }

// Open returns an error of kind KindUnavailable.
func Open(context.Context, Options) (*Executor, error) { return noneOf[*Executor]() }

// Planner returns an executor for Check, Asks and VerifyReceipt alone: it makes no state directory.
func Planner(o Options) (*Executor, error) {
	dir, err := statedir.Locate(o.Dir)
	if err != nil {
		return nil, err
	}
	return &Executor{&statedir.Dir{Root: dir}}, nil
}

func none() error { return platform.NoSandboxes("executor.open") }

func noneOf[T any]() (nothing T, err error) { return nothing, none() }

// Close does nothing.
func (x *Executor) Close() error { return nil }

// Check reports a missing document. The host that runs the document checks it against its limits
// and its policy.
func (x *Executor) Check(doc *document.Document, _ string, _ bool) error {
	return scripts.HasDocument(doc)
}

// Asks lists nothing: the configuration of the host that runs doc decides.
func (x *Executor) Asks(doc *document.Document, _ bool) ([]turnstone.Ask, error) {
	return nil, scripts.HasDocument(doc)
}

// CheckScripts reports the steps of doc whose script bash cannot parse, as a document.SyntaxErrors.
// Skipped steps and steps with the attribute unparsed are not checked. Any other error means that
// the check itself failed.
func CheckScripts(ctx context.Context, doc *document.Document) error {
	return scripts.Check(ctx, doc)
}

// VerifyReceipt checks a receipt by itself: it needs no session and no store. name is for messages.
func (x *Executor) VerifyReceipt(ctx context.Context, name string, file []byte,
	trust []string) (*turnstone.VerifyReport, error) {
	t, err := proof.Trusted(x.dir, trust)
	if err != nil {
		return nil, err
	}
	return proof.VerifyReceipt(ctx, name, file, t), nil
}

// Shape returns the default shape: no template is known here.
func (x *Executor) Shape(string) turnstone.Shape { return turnstone.DefaultShape() }

// ReceiptFile returns "": no turn is stored here.
func (x *Executor) ReceiptFile(turnstone.TurnID) string { return "" }

// NoteUse does nothing: no session is stored here.
func (x *Executor) NoteUse(context.Context, string) {}

// A Sandbox does not exist on this system.
type Sandbox struct{}

// ID returns "".
func (s *Sandbox) ID() turnstone.SandboxID { return "" }

// Client returns nil.
func (s *Sandbox) Client() *wire.Client { return nil }

// Close does nothing.
func (s *Sandbox) Close() error { return nil }

// Environ returns nothing: it is for a holder.
func (o Options) Environ() []string { return nil }

// What runs sandboxes, and what reads the store.

func (x *Executor) Run(context.Context, Request, Observer) (*turnstone.TurnReport, error) {
	return noneOf[*turnstone.TurnReport]()
}

func (x *Executor) Times(context.Context, Request, int, Observer) (*turnstone.TurnReport, error) {
	return noneOf[*turnstone.TurnReport]()
}

// Ended returns the error of this system.
func (x *Executor) Ended(context.Context, turnstone.TurnID) (*turnstone.TurnReport, bool, error) {
	return nil, false, none()
}

// ResumeTurn returns the error of this system.
func (x *Executor) ResumeTurn(context.Context, ResumeTurnRequest, Observer) (*turnstone.TurnReport,
	error) {
	return noneOf[*turnstone.TurnReport]()
}

func (x *Executor) Replay(context.Context, string, ReplayOptions, Observer) (
	*turnstone.ReplayReport, error) {
	return noneOf[*turnstone.ReplayReport]()
}

func (x *Executor) ReplayRange(context.Context, RangeRequest, Observer) (
	*turnstone.RangeReport, error) {
	return noneOf[*turnstone.RangeReport]()
}

func (x *Executor) Frozen(context.Context, string, []byte, Request, Observer) (
	*turnstone.FrozenReport, error) {
	return noneOf[*turnstone.FrozenReport]()
}

func (x *Executor) Bisect(context.Context, BisectRequest, Observer) (
	*turnstone.BisectReport, error) {
	return noneOf[*turnstone.BisectReport]()
}

func (x *Executor) Sessions(context.Context) ([]turnstone.SessionInfo, error) {
	return noneOf[[]turnstone.SessionInfo]()
}

func (x *Executor) Session(context.Context, string) (*turnstone.Graph, error) {
	return noneOf[*turnstone.Graph]()
}

func (x *Executor) Log(context.Context, string, int) (*turnstone.Graph, error) {
	return noneOf[*turnstone.Graph]()
}

func (x *Executor) Expand(context.Context, string, string) (string, error) {
	return noneOf[string]()
}

func (x *Executor) CurrentSession(context.Context, string) (turnstone.Session, error) {
	return noneOf[turnstone.Session]()
}

func (x *Executor) Show(context.Context, string) (*turnstone.TurnInfo, error) {
	return noneOf[*turnstone.TurnInfo]()
}

func (x *Executor) Receipt(context.Context, string) ([]byte, error) { return noneOf[[]byte]() }

func (x *Executor) OpenFile(context.Context, string, string) (io.ReadCloser, error) {
	return noneOf[io.ReadCloser]()
}

func (x *Executor) PackFiles(context.Context, string, string, io.Writer,
	func(string, string)) error {
	return none()
}

func (x *Executor) Diff(context.Context, turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	return noneOf[*turnstone.StateDiff]()
}

func (x *Executor) Compare(context.Context, []string) (*turnstone.CompareReport, error) {
	return noneOf[*turnstone.CompareReport]()
}

func (x *Executor) Prepare(context.Context, string) error { return none() }

func (x *Executor) Fork(context.Context, string, string) (turnstone.Branch, error) {
	return noneOf[turnstone.Branch]()
}

func (x *Executor) ForkLive(context.Context, string, string) (turnstone.Branch, error) {
	return noneOf[turnstone.Branch]()
}

func (x *Executor) Tag(context.Context, string, string) (turnstone.Tag, error) {
	return noneOf[turnstone.Tag]()
}

func (x *Executor) Untag(context.Context, string, string) error { return none() }

func (x *Executor) CreateSession(context.Context, turnstone.SessionID, string) (turnstone.Session,
	error) {
	return noneOf[turnstone.Session]()
}

func (x *Executor) Rename(context.Context, string, string) (turnstone.Session, error) {
	return noneOf[turnstone.Session]()
}

func (x *Executor) RemoveSession(context.Context, string) (turnstone.Session, error) {
	return noneOf[turnstone.Session]()
}

func (x *Executor) SealSessions(context.Context, []string) (*turnstone.SealReport, error) {
	return noneOf[*turnstone.SealReport]()
}

func (x *Executor) Memory(context.Context, string, string) (string, error) { return noneOf[string]() }

func (x *Executor) SweepKeys() error { return none() }

func (x *Executor) TakeKey([]byte) (string, error) { return noneOf[string]() }

func (x *Executor) WithKey(context.Context, string) (context.Context, error) {
	return noneOf[context.Context]()
}

func (x *Executor) ShredSession(context.Context, string) (turnstone.Session, error) {
	return noneOf[turnstone.Session]()
}

func (x *Executor) RemoveBranch(context.Context, string, string) error { return none() }

func (x *Executor) Merge(context.Context, MergeRequest) (*turnstone.MergeReport, error) {
	return noneOf[*turnstone.MergeReport]()
}

func (x *Executor) Export(context.Context, ExportRequest, io.Writer) (
	*turnstone.ExportReport, error) {
	return noneOf[*turnstone.ExportReport]()
}

func (x *Executor) Import(context.Context, ImportRequest, io.Reader) (
	*turnstone.ImportReport, error) {
	return noneOf[*turnstone.ImportReport]()
}

func (x *Executor) GC(context.Context, turnstone.GCRequest) (*turnstone.GCReport, error) {
	return noneOf[*turnstone.GCReport]()
}

func (x *Executor) Fsck(context.Context) (*turnstone.FsckReport, error) {
	return noneOf[*turnstone.FsckReport]()
}

func (x *Executor) Usage(context.Context) (*turnstone.Usage, error) {
	return noneOf[*turnstone.Usage]()
}

func (x *Executor) Verify(context.Context, turnstone.VerifyRequest) (
	*turnstone.VerifyReport, error) {
	return noneOf[*turnstone.VerifyReport]()
}

func (x *Executor) SignTurn(context.Context, string) (*turnstone.VerifiedTurn, error) {
	return noneOf[*turnstone.VerifiedTurn]()
}

func (x *Executor) Heads(context.Context, string) ([]turnstone.LoggedHead, error) {
	return noneOf[[]turnstone.LoggedHead]()
}

func (x *Executor) BuildTemplate(context.Context, string, TemplateBuild) (
	*turnstone.Template, error) {
	return noneOf[*turnstone.Template]()
}

func (x *Executor) EnsureTemplate(context.Context, string, bool, func(string)) (
	*turnstone.Template, error) {
	return noneOf[*turnstone.Template]()
}

func (x *Executor) PushTemplate(context.Context, TemplatePush) (
	*turnstone.TemplatePushed, error) {
	return noneOf[*turnstone.TemplatePushed]()
}

func (x *Executor) RemoveTemplate(context.Context, TemplateRemoval) ([]turnstone.Session, error) {
	return noneOf[[]turnstone.Session]()
}

func (x *Executor) PruneTemplates(context.Context, TemplatePrune) (
	*turnstone.TemplatePruned, error) {
	return noneOf[*turnstone.TemplatePruned]()
}

func (x *Executor) Homes(context.Context) ([]turnstone.HomeInfo, error) {
	return noneOf[[]turnstone.HomeInfo]()
}

func (x *Executor) HasHome(context.Context, string) error { return none() }

func (x *Executor) RemoveHome(context.Context, string) error { return none() }

func (x *Executor) Exec(context.Context, CommandRequest, func(string)) (int, error) {
	return noneOf[int]()
}

func (x *Executor) Create(context.Context, SandboxRequest, func(string)) (*Sandbox, error) {
	return noneOf[*Sandbox]()
}

func (x *Executor) OpenMachine(context.Context, turnstone.SandboxID, sandboxes.Spec,
	func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	return nil, sandboxes.Details{}, none()
}

func (x *Executor) Resume(context.Context, ResumeRequest, func(string)) (sandboxes.Info, error) {
	return noneOf[sandboxes.Info]()
}

func (x *Executor) Trace(context.Context, string, func(turnstone.TraceLine) error) error {
	return none()
}

func (x *Executor) ListFiles(context.Context, string, string, bool,
	func(turnstone.FileInfo) error) error {
	return none()
}

func (x *Executor) CopyOut(context.Context, string, string, string, func(string, string)) error {
	return none()
}

func (x *Executor) DefaultNetwork() (bool, error) { return noneOf[bool]() }

func (x *Executor) Substrates(context.Context) []string { return nil }
