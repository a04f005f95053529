package turn

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/template"
)

// DefaultImage is what a document runs on that names none.
const DefaultImage = "base"

// DefaultTimeout bounds a turn whose document and caller set no bound, so that a
// forgotten one does not hold its machine for ever.
const DefaultTimeout = time.Hour

// A plan is a Request with every question answered. makePlan makes it from facts that are read
// once, and it does not change afterwards: a turn has the copy that branchPoint.inherit returns.
type plan struct {
	image    string
	template *template.Template // what image stands for; nil: it is looked up, and built
	shape    turnstone.Shape
	env      []string
	cwd      string
	timeout  time.Duration
	timed    bool       // somebody asked for timeout
	add      []Transfer // Path on the host, absolute unless it is in folder; Dest in the sandbox, absolute, or ending in "/"
	get      []Transfer // Path in the sandbox, absolute; Dest on the host
	folder   *os.Root   // the document's; nil: nothing of it is read
	driver   string
	live     bool // its machine is paused, or cloned as it runs
	kept     bool // its machine is one that was kept

	isolation document.Isolation // what the document insists on
	authority *authority         // what the document is granted; nil: there is no document
	anonymous bool               // nobody but a document names image: see template.Store.Anonymous

	hostname string // empty: the sandbox's ID

	session, branch string
	lifetime        document.Lifetime
	home            string
	turn            turnstone.TurnID // that this is the plan of; empty: of no turn
	snapshot        document.Snapshot
	secrets         *secret.Set
	asked           string        // the image that the caller or the document names; may be empty
	given           []string      // environment that the caller gave beside the document
	replay          *replayOf     // the turn repeats another one
	wants           wants         // of the machine
	limits          config.Limits // of this host; zero before admit
	room            func() error  // an error when the host's disk is nearly full; nil: nobody asks
	net             netplan.Rules
	link            *netplan.Link // what serves net; nil before the sandbox is opened
	table           bool          // the receipt lists all commands
}

func invalid(subject, format string, args ...any) error {
	return turnstone.Errorf("executor.plan", turnstone.KindInvalid, subject, format, args...)
}

// makePlan returns the plan of a's request on a host with these limits, before the turn has a place
// in its session. image is what the turn's image stands for, and workdir where its steps run. room
// is an error when the host's disk is nearly full; nil: nobody asks. It starts nothing, and reads no
// more than whether the files are there that go into the sandbox. The caller closes the plan.
func makePlan(a *authority, image, workdir string, limits config.Limits, room func() error) (*plan, error) {
	p, err := planTurn(a.req, workdir)
	if err != nil {
		return nil, err
	}
	p.image = cmp.Or(image, p.image) // of an image of a registry, with the digest
	p.authority, p.anonymous = a, a.anonymous()
	p.limits, p.room = limits, room
	err = p.fitLimits()
	if err == nil && room != nil {
		err = room()
	}
	if err == nil {
		err = p.planNetwork(a.req, a.host)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// planTurn merges what the caller, the document and the defaults say, in this order.
// workdir is where the template has its steps run.
func planTurn(req Request, workdir string) (*plan, error) {
	front := req.Document.Front
	p := &plan{
		image:   cmp.Or(req.Image, front.Image, DefaultImage),
		cwd:     inCwd(workdir, front.Cwd),
		timeout: cmp.Or(req.Timeout, front.Timeout, DefaultTimeout),
		shape:   turnstone.DefaultShape(),
		env:     append(slices.Clone(front.Env), req.Env...),
		driver:  cmp.Or(req.Substrate, "auto"),
	}
	p.table = req.Commands
	p.isolation, p.timed = front.Isolation, req.Timeout != 0 || front.Timeout != 0
	p.session, p.branch = cmp.Or(req.Session, front.Session), cmp.Or(req.Branch, front.Branch, DefaultBranch)
	p.lifetime, p.snapshot = cmp.Or(req.Lifetime, front.Lifetime, document.LifetimeTurn), cmp.Or(req.Snapshot, front.Snapshot, document.SnapshotNone)
	p.home, p.asked, p.given = cmp.Or(req.Home, front.Home), cmp.Or(req.Image, front.Image), req.Env
	if p.replay = req.replay; p.replay != nil {
		// A replay belongs to no session and changes nothing that outlives it.
		p.lifetime, p.snapshot, p.home = document.LifetimeTurn, document.SnapshotNone, ""
	}
	p.wants = wants{cpus: cmp.Or(req.CPUs, front.CPUs), memory: cmp.Or(req.Memory, front.Memory), disk: cmp.Or(req.Disk, front.Disk), network: cmp.Or(req.Network, front.Network)}
	p.shape.CPUs = cmp.Or(req.CPUs, front.CPUs, p.shape.CPUs)
	p.shape.Memory = cmp.Or(req.Memory, front.Memory, p.shape.Memory)
	p.shape.Disk = cmp.Or(req.Disk, front.Disk, p.shape.Disk)
	if n := cmp.Or(req.Network, front.Network); n != nil {
		p.shape.Network = *n
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.context(req.Secrets); err != nil {
		return nil, err
	}
	if err := p.noSecret(req); err != nil {
		return nil, err
	}
	if err := p.files(req); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// files says what is copied in and out, below the working directory.
func (p *plan) files(req Request) error {
	p.add, p.get = nil, nil
	for _, file := range req.Document.Front.Files {
		t, err := p.documentFile(req.Dir, file)
		if err != nil {
			return err
		}
		p.add = append(p.add, t)
	}
	return p.transfers(req.Add, req.Get)
}

// noSecret refuses a secret's value where it would be kept with the turn: in what its
// caller says openly.
func (p *plan) noSecret(req Request) error {
	if p.secrets == nil {
		return nil
	}
	at := map[string]string{"the document": string(req.Document.Clean()), "the document's name": req.Document.Name,
		"the session's name": p.session, "the branch's name": p.branch, "the home's name": p.home, "the image's name": p.asked}
	for _, kv := range p.env {
		at["env "+envName(kv)] = kv
	}
	for _, t := range append(slices.Clone(req.Add), req.Get...) {
		at["a file's name"] += t.Path + "\n" + t.Dest + "\n"
	}
	for _, where := range slices.Sorted(maps.Keys(at)) {
		if name := p.secrets.Written().In(at[where]); name != "" {
			return turnstone.Errorf("executor.plan", turnstone.KindInvalid, p.secrets.Written().Mask(where),
				"%w (%s), and would be kept with it", secret.ErrFound, name).
				WithHint("take it out there; steps have it as $" + name)
		}
	}
	return nil
}

// wants is what was asked of the machine; zero where its turn takes what there is.
type wants struct {
	cpus         int
	memory, disk turnstone.Bytes
	network      *bool
}

// fit tells whether a machine of shape s is what was asked for.
func (w wants) fit(s turnstone.Shape) bool {
	return (w.cpus == 0 || w.cpus == s.CPUs) && (w.memory == 0 || w.memory == s.Memory) && (w.disk == 0 || w.disk == s.Disk) &&
		(w.network == nil || *w.network == s.Network)
}

func (p *plan) check() error {
	if err := p.shape.Validate(); err != nil {
		return turnstone.NewError("executor.plan", turnstone.KindInvalid, "", err)
	}
	if p.timeout <= 0 {
		return invalid("timeout", "%s is not a time to run", p.timeout)
	}
	if err := driver.Fits(p.driver, p.needs()); err != nil {
		return err
	}
	for _, kv := range p.env {
		if name, _, ok := strings.Cut(kv, "="); !ok || !validEnvName(name) || strings.ContainsRune(kv, 0) {
			return invalid("env", "%q is not NAME=VALUE", kv)
		}
	}
	return nil
}

// DefaultBranch is the branch of a turn that names none.
const DefaultBranch = "main"

// context checks what p says of sessions and secrets.
func (p *plan) context(secrets []string) (err error) {
	const op = "executor.plan"
	for what, name := range map[string]string{"session": p.session, "branch": p.branch, "home": p.home} {
		if name == "" {
			continue
		}
		if err := turnstone.CheckName(what, name); err != nil {
			return turnstone.NewError(op, turnstone.KindInvalid, "", err)
		}
	}
	for _, kv := range secrets {
		if name, _, ok := strings.Cut(kv, "="); !ok || !validEnvName(name) {
			return turnstone.Errorf(op, turnstone.KindInvalid, "--secret",
				"one has no name that a variable can have")
		}
	}
	if p.secrets, err = secret.New(secrets); err != nil {
		return err
	}
	if p.secrets != nil && p.snapshot == document.SnapshotVM {
		return turnstone.Errorf(op, turnstone.KindInvalid, "snapshot: vm",
			"the machine's memory would hold the secrets").
			WithHint("leave out --secret, or the snapshot")
	}
	if p.secrets != nil && p.lifetime == document.LifetimeSession {
		return turnstone.Errorf(op, turnstone.KindInvalid, "lifetime: session",
			"the secrets would stay in the paused machine").
			WithHint("leave out --secret, or run this turn with lifetime: turn")
	}
	if p.lifetime == document.LifetimeSession && p.snapshot == document.SnapshotVM {
		return turnstone.Errorf(op, turnstone.KindInvalid, "snapshot: vm",
			"a machine that stays is not kept a second time").
			WithHint("run the turn with lifetime: turn, or leave out the snapshot")
	}
	if p.snapshot == document.SnapshotVM && p.home != "" {
		return turnstone.Errorf(op, turnstone.KindInvalid, "snapshot: vm",
			"a home goes on changing without the machine").
			WithHint("leave out the home, or the snapshot")
	}
	if p.lifetime == document.LifetimeSession && p.home != "" {
		return turnstone.Errorf(op, turnstone.KindInvalid, "home "+p.home,
			"a machine that stays would keep the home from all others").
			WithHint("leave out home:, or run this turn with lifetime: turn")
	}
	if p.secrets != nil && p.home != "" {
		return turnstone.Errorf(op, turnstone.KindInvalid, "home "+p.home,
			"what is in a home is not searched, and it would keep the secrets").
			WithHint("leave out --secret, or the home")
	}
	if p.lifetime == document.LifetimeSession && p.session == "" {
		return noSession("lifetime: session")
	}
	return nil
}

func validEnvName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// ParseTransfer splits PATH[:DEST] at its last colon. A path that has a colon of
// its own is written with one more at its end, as "12:30.csv:".
func ParseTransfer(s string) (Transfer, error) {
	t := Transfer{Path: s}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		t.Path, t.Dest = s[:i], s[i+1:]
	}
	if t.Path == "" {
		return t, fmt.Errorf("%q: write PATH or PATH:DEST", s)
	}
	return t, nil
}

// documentFile resolves one entry of the document's files:. A document may come
// from anybody, so it reaches only what lies beside and below it, also through
// symbolic links.
func (p *plan) documentFile(dir, file string) (Transfer, error) {
	t, err := ParseTransfer(file)
	if err != nil {
		return t, invalid("files", "%w", err)
	}
	src := t.Path
	if dir == "" {
		return Transfer{}, outsideFolder(src, errors.New("the document has no folder"))
	}
	if !filepath.IsLocal(src) {
		return Transfer{}, outsideFolder(src, errLeaves)
	}
	if p.folder == nil {
		if p.folder, err = os.OpenRoot(dir); err != nil {
			return Transfer{}, outsideFolder(src, err)
		}
	}
	if _, err := p.folder.Stat(src); err != nil {
		return Transfer{}, outsideFolder(src, err)
	}
	return Transfer{Path: filepath.Join(dir, src), Dest: p.inside(t.Dest, src), In: p.folder}, nil
}

// close closes the document's folder, which stays open from where its files: were
// checked to where they are read.
func (p *plan) close() {
	if p.folder != nil {
		_ = p.folder.Close()
	}
}

// inside returns where name goes in the sandbox: dest, else the same name in the
// working directory. A trailing slash survives: it means "into this folder".
func (p *plan) inside(dest, name string) string {
	if dest == "" {
		return path.Join(p.cwd, filepath.Base(name))
	}
	slash := strings.HasSuffix(dest, "/")
	if !path.IsAbs(dest) {
		dest = path.Join(p.cwd, dest)
	}
	dest = path.Clean(dest)
	if slash && dest != "/" {
		dest += "/"
	}
	return dest
}

func (p *plan) transfers(add, get []Transfer) error {
	for _, t := range add {
		abs, err := filepath.Abs(t.Path)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			return invalid("--add", "%w", err)
		}
		p.add = append(p.add, Transfer{Path: abs, Dest: p.inside(t.Dest, abs)})
	}
	for _, t := range get {
		if t.Path == "" {
			return invalid("--get", "no path given")
		}
		src := t.Path
		if !path.IsAbs(src) {
			src = path.Join(p.cwd, src)
		}
		p.get = append(p.get, Transfer{Path: path.Clean(src), Dest: cmp.Or(t.Dest, ".")})
	}
	return nil
}

// mostToGet bounds the bytes that can be copied out of s: all that there can be, except holes,
// because a sparse file is longer than its disk.
func (p *plan) mostToGet(s *Sandbox) turnstone.Bytes {
	return p.shape.Disk + turnstone.Bytes(s.Template.Size)
}
