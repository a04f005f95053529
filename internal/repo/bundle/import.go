package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Bounds of an import, because the file is untrusted.
const (
	maxExportHead   = 64 << 20
	maxExportTail   = 192 << 20
	maxExportWindow = 64 << 20 // of zstd: the memory limit of its decoder
	roomEvery       = 64 << 20 // bytes of objects between two checks of the disk's free space

	// A list of chunks can name one chunk many times, and every byte of a content is hashed. All
	// contents together may have maxUnpacked bytes, plus maxUnpacking times the file's size. Zeros
	// of sparse files and of machines' memory repeat most.
	maxUnpacked  = 32 << 30
	maxUnpacking = 1024
)

// An ImportRequest has the options of an import.
type ImportRequest struct {
	As       string                // another name for the session; empty: the name in the file
	Build    turnstone.ImportBuild // empty: BuildNone
	Progress func(string)          // receives the progress of builds; may be nil
	// AcceptHistory imports a session whose log of heads does not begin with the log of heads
	// that is known here.
	AcceptHistory bool
}

// Import adds the session that Export wrote to r, under the same IDs. Every object is checked
// against its name; every content, record and FS hash against its references. Unreferenced and
// missing objects are errors, except contents that the file omits because a template has them: the
// report lists the missing ones. Templates are built as req requests; a failed build is no error.
// The session appears as a whole or not at all; objects of a rejected file may take up space until
// GC.
func (h Host) Import(ctx context.Context, req ImportRequest,
	r io.Reader) (*turnstone.ImportReport, error) {
	cs, err := h.Repo.Open(ctx)
	if err != nil {
		return nil, err
	}
	if req.As != "" {
		if err := session.CheckName("session", req.As); err != nil {
			return nil, err
		}
	}
	in := &counting{r: r}
	z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxExportWindow),
		zstd.WithDecoderConcurrency(2))
	if err != nil {
		return nil, notExported(err)
	}
	defer z.Close()
	m := &importer{cs: cs, tr: tar.NewReader(z), host: h, objects: map[turnstone.Digest]bool{},
		leftOut: map[turnstone.Digest]bool{}, missing: map[turnstone.Digest]int64{}}
	if err := m.head(ctx); err != nil {
		return nil, err
	}
	if req.As != "" {
		m.graph.Session.Name = req.As
	}
	if has, err := m.known(ctx, req.As != ""); err != nil || has {
		return &m.rep, err
	}
	if m.cs, m.graph.Session.Domain, err = cs.NewDomain(ctx); err != nil {
		return nil, err
	}
	defer cs.Settle(m.graph.Session.Domain)
	batch, err := m.cs.Store.Begin(ctx) // gc deletes nothing of the batch before the session exists
	if err != nil {
		return nil, err
	}
	defer func() { _ = batch.Close() }()
	if err := m.copy(ctx, batch); err != nil {
		return nil, err
	}
	if err := batch.Flush(ctx); err != nil {
		return nil, err
	}
	if err := m.readTemplates(ctx, batch, req); err != nil {
		return nil, err
	}
	m.unpacked = maxUnpacked + in.read()*maxUnpacking
	if err := m.verify(ctx); err != nil {
		return nil, err
	}
	if err := m.verifyChain(ctx); err != nil {
		return nil, err
	}
	m.report()
	m.rep.Fresh, err = cs.DB.Import(ctx, &m.graph, session.ImportHistory{Heads: m.heads,
		Accept: req.AcceptHistory, Needs: m.cs.Needs(batch)})
	if err != nil {
		return nil, err
	}
	return &m.rep, nil
}

type importer struct {
	cs     *repo.ContextStore
	tr     *tar.Reader
	host   Host
	format int
	graph  turnstone.Graph
	heads  []session.LoggedHead   // the log of heads
	log    []turnstone.LoggedHead // the same, decoded
	// objects in the file; true: an object of the session names it
	objects map[turnstone.Digest]bool
	tail    *exportTail               // nil: the file has no tail
	leftOut map[turnstone.Digest]bool // by tail
	missing map[turnstone.Digest]int64
	unbuilt []turnstone.UnbuiltTemplate
	rep     turnstone.ImportReport

	borrowed turnstone.Digest // see borrow
	unpacked int64            // bytes that further contents in chunks may have together
}

// A counting reader counts the bytes that were read.
type counting struct {
	r io.Reader
	n atomic.Int64 // the decoder reads in its own goroutine
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// read returns the number of bytes, bounded so that a multiple does not overflow.
func (c *counting) read() int64 { return min(c.n.Load(), 1<<50) }

func notExported(err error) error {
	if turnstone.KindOf(err) != turnstone.KindInternal {
		return err
	}
	kind := turnstone.KindIntegrity
	if errors.Is(err, zstd.ErrMagicMismatch) { // another file, not a damaged one
		kind = turnstone.KindInvalid
	}
	return turnstone.Errorf("executor.import", kind, "the file",
		"is not an exported session, or is damaged: %w", err).
		WithHint("name a file that turn session export wrote")
}

func refused(format string, args ...any) error {
	return turnstone.Errorf("executor.import", turnstone.KindIntegrity, "the file",
		format, args...).WithHint("export the session again")
}

// head reads the first entry.
func (m *importer) head(ctx context.Context) error {
	h, err := m.tr.Next()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return notExported(err)
	}
	if h.Name != exportHeadAt || h.Typeflag != tar.TypeReg || h.Size > maxExportHead {
		return notExported(fmt.Errorf("it begins with %.80q", h.Name))
	}
	b, err := io.ReadAll(io.LimitReader(m.tr, maxExportHead))
	if err != nil {
		return notExported(err)
	}
	head := exportHead{}
	if err := json.Unmarshal(b, &head); err != nil {
		return notExported(err)
	}
	if head.Format < 1 || head.Format > exportFormat {
		return turnstone.Errorf("executor.import", turnstone.KindUnavailable, "the file",
			"has format %d; this program supports formats up to %d", head.Format, exportFormat).
			WithHint(fmt.Sprintf("use the version of turn that wrote it: %.40q", head.Version))
	}
	m.graph, m.format = head.Graph, head.Format
	m.graph.Session.Domain = "" // how it is sealed is decided here
	for i := range m.graph.Turns {
		m.graph.Turns[i].Domain, m.graph.Turns[i].Locked = "", false
	}
	if err := m.readHeads(ctx, head.Heads); err != nil {
		return err
	}
	m.rep = turnstone.ImportReport{Session: m.graph.Session, Turns: len(m.graph.Turns),
		Templates: []turnstone.UnbuiltTemplate{}}
	return session.CheckGraph(&m.graph)
}

// known reports whether the state directory has the session already.
func (m *importer) known(ctx context.Context, renamed bool) (bool, error) {
	m.rep.Session = m.graph.Session
	has, err := m.cs.DB.Has(ctx, &m.graph)
	if has && err == nil {
		s, err := m.cs.DB.Find(ctx, string(m.graph.Session.ID))
		m.rep.Session = s
		if err == nil && renamed && s.Name != m.graph.Session.Name {
			return true, turnstone.Errorf("executor.import", turnstone.KindInvalid, s.Label(),
				"the session exists already under this name").
				WithHint("rename the session with turn session rename")
		}
		return true, err
	}
	return false, err
}

// copy puts the file's objects into the batch.
func (m *importer) copy(ctx context.Context, batch *store.Batch) error {
	var buf bytes.Buffer
	next := int64(0)
	for {
		h, err := m.tr.Next()
		if err == io.EOF && m.format > 1 && m.tail == nil {
			return refused("has no %s: the file is truncated", exportTailAt)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return notExported(err)
		}
		if h.Name == exportTailAt {
			if err := m.readTail(h); err != nil {
				return err
			}
			continue
		}
		d, err := objectName(h)
		if err != nil {
			return err
		}
		if _, twice := m.objects[d]; twice {
			return refused("has the object %s twice", d.Short())
		}
		if m.rep.Bytes >= next {
			if err := m.host.Room(); err != nil {
				return err
			}
			next = m.rep.Bytes + roomEvery
		}
		buf.Reset()
		if _, err := io.Copy(&buf, m.tr); err != nil {
			return notExported(err)
		}
		if have := turnstone.DigestBytes(buf.Bytes()); have != d {
			return refused("the object %s is damaged: it is %s", d, have)
		}
		if _, err := batch.Put(ctx, buf.Bytes()); err != nil {
			return err
		}
		m.objects[d] = false
		m.rep.Objects++
		m.rep.Bytes += h.Size
	}
}

// objectName returns the digest in an entry's name.
func objectName(h *tar.Header) (turnstone.Digest, error) {
	hexed, ok := strings.CutPrefix(h.Name, exportObject)
	raw, err := hex.DecodeString(hexed)
	if !ok || err != nil || len(raw) != 32 || hexed != strings.ToLower(hexed) ||
		h.Typeflag != tar.TypeReg {
		return "", refused("has an entry %.80q, which is not an object", h.Name)
	}
	if h.Size < 0 || h.Size > store.MaxObject {
		return "", refused("has an object of %d bytes", h.Size)
	}
	return turnstone.Digest("sha256:" + hexed), nil
}

// verify reads all data that the session names.
func (m *importer) verify(ctx context.Context) error {
	seen := repo.Seen{}
	r := &repo.Reach{In: m.cs, Verify: tree.NewVerifier(m.cs.Store),
		Failed: func(what string, err error) error {
			e := turnstone.NewError("executor.import", turnstone.KindOf(err), what, err).
				WithHint(turnstone.HintOf(err))
			if e.Kind == turnstone.KindNotFound {
				e.Kind = turnstone.KindIntegrity
				e.Hint = "the file does not have it: export the session again"
			}
			return e
		}}
	r.Object = func(d turnstone.Digest) bool {
		if !m.named(d) {
			m.borrow(ctx, d)
		}
		return seen.First(d)
	}
	contents := map[turnstone.Content]bool{}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		if contents[c] {
			return nil
		}
		contents[c] = true
		return m.verifyContent(ctx, c)
	}
	for _, t := range m.graph.Turns {
		if err := r.Turn(ctx, t); err != nil {
			return err
		}
		if err := m.sameAsRecord(ctx, t); err != nil {
			return err
		}
	}
	for d, named := range m.objects {
		if !named {
			return refused("has the object %s, which no other object names", d)
		}
	}
	if m.borrowed != "" {
		return turnstone.Errorf("executor.import", turnstone.KindInvalid, "the file",
			"names %s, and does not have it", m.borrowed).
			WithHint("export the session with --full")
	}
	return nil
}

// borrow notes an object that the file names and does not have. Somebody who may not use every
// session here cannot know whether it is another's: whoever knows its digest could read it.
func (m *importer) borrow(ctx context.Context, d turnstone.Digest) {
	if session.Limited(ctx) && !m.cs.Templates.HasContent(d) {
		m.borrowed = d
	}
}

// named records that an object names d, and reports whether the file has d.
func (m *importer) named(d turnstone.Digest) bool {
	_, ours := m.objects[d]
	if ours {
		m.objects[d] = true
	}
	return ours
}

// admit rejects a content if the contents up to it have more bytes than the file's size allows.
func (m *importer) admit(c turnstone.Content) error {
	if c.Chunks == "" {
		return nil // it is one object, which copy has read
	}
	if c.Size < 0 || c.Size > m.unpacked {
		return turnstone.Errorf("executor.import", turnstone.KindIntegrity, "the file",
			"unpacks to more than %s and %d times its own size: a content of %s is too large",
			turnstone.Bytes(maxUnpacked), maxUnpacking, turnstone.Bytes(c.Size)).
			WithHint("export a session without its repeated contents, such as sparse files")
	}
	m.unpacked -= c.Size
	return nil
}

// verifyContent reads a content that is in the file, and looks up other contents.
func (m *importer) verifyContent(ctx context.Context, c turnstone.Content) error {
	if err := m.admit(c); err != nil {
		return err
	}
	objects, err := m.cs.Store.ContentObjects(ctx, c)
	if err != nil {
		return err
	}
	ours := m.named(c.Digest) && c.Chunks == ""
	for _, d := range objects {
		has := m.named(d)
		ours = has || ours
		if !has && !m.leftOut[d] {
			m.borrow(ctx, d)
		}
	}
	for _, d := range objects {
		has, err := m.cs.Store.Has(ctx, d)
		if err == nil && has && m.leftOut[d] {
			m.borrow(ctx, d)
		}
		if err == nil && !has && m.leftOut[d] && c.Chunks == "" && d == c.Digest {
			m.missing[d] = c.Size
			return nil
		}
		if err == nil && !has {
			err = turnstone.Errorf("executor.import", turnstone.KindUnavailable, string(d),
				"is neither in the file nor in the store").WithHint(m.toGetTemplates())
		}
		if err != nil {
			return err
		}
	}
	if !ours && c.Chunks == "" {
		// Older contents were checked when they were stored. A list of chunks is read again,
		// because it may be named as another content.
		return nil
	}
	in, err := m.cs.Store.OpenContent(ctx, c)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, in.Close())
}

// sameAsRecord compares t in the session with t's record.
func (m *importer) sameAsRecord(ctx context.Context, t turnstone.Turn) error {
	if t.Record == "" {
		return nil
	}
	rec, err := m.cs.Record(ctx, t)
	if err != nil {
		return err
	}
	if rec.Result != t.Result || rec.Kind != t.Kind || rec.Branch != t.Branch ||
		rec.State != t.State ||
		!slices.Equal(rec.Parents, t.Parents) {
		return refused("turn %d differs from its record", t.Number)
	}
	return nil
}
