// Package audit keeps who did what to which object: a log of lines that is only appended to, each
// of which names the digest of the line before. It holds names, IDs and times, and no content.
//
// A log is a folder of files of JSON lines. Each file has the number of its first line as its name.
// A new file begins when one is full; none is ever removed, so that moving old files away is the
// operator's decision.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// Outcomes of calls.
const (
	Done    = "done"
	Refused = "refused" // the caller may not, or a limit is reached
	Failed  = "failed"
)

// An Entry is one line. Seq, Prev and an unset Time are the log's own.
type Entry struct {
	Seq  uint64    `json:"seq"`
	Prev string    `json:"prev"` // digest of the line before, without its line feed; "": the first
	Time time.Time `json:"time"`

	Tenant  string `json:"tenant,omitempty"`
	Subject string `json:"subject,omitempty"`
	Issuer  string `json:"issuer,omitempty"`
	Token   string `json:"token,omitempty"` // its ID
	Address string `json:"address,omitempty"`

	Method  string `json:"method"`
	Object  string `json:"object,omitempty"`
	Outcome string `json:"outcome"`
	Kind    string `json:"kind,omitempty"` // of the error

	// Count is how many more calls like an earlier line there were since Since: see Log.Note.
	Count int       `json:"count,omitempty"`
	Since time.Time `json:"since,omitzero"`

	// Controller is the one of several controllers that answered: the log sets it. Fence is that of a
	// term in which it leads.
	Controller string `json:"controller,omitempty"`
	Fence      int64  `json:"fence,omitempty"`
}

// Options are for Open. Zero values select the defaults.
type Options struct {
	Size  turnstone.Bytes // of a file, after which the next begins: 64 MiB
	Sync  time.Duration   // from a line to its arrival on the disk at the latest: 1 s
	Every time.Duration   // between lines about repetitions: 1 min
	Log   *slog.Logger    // nil: none
	Now   func() time.Time
	// Controller is in each line; empty: in none.
	Controller string
}

// A Log is open for appending. Its methods are safe for concurrent use. One process has it open.
type Log struct {
	dir  string
	o    Options
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	file    file
	size    int64 // of file, in whole lines
	seq     uint64
	prev    string
	dirty   bool
	waiting []Entry // that could not be written
	failed  int64   // entries that had to wait
	fault   error   // why; nil: they are written
	closed  bool

	repeats repeats
}

// file is what a Log writes to.
type file interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// maxWaiting bounds the lines that wait for a disk that is full. New operations are refused
// meanwhile, so that only those that had begun add lines.
const maxWaiting = 100_000

// Open opens the log in the folder dir, and creates it. A line that a crash has cut is removed and
// noted: its call was never answered. The error is of kind Integrity if the last file is damaged.
func Open(dir string, o Options) (*Log, error) {
	if o.Size == 0 {
		o.Size = 64 << 20
	}
	if o.Sync == 0 {
		o.Sync = time.Second
	}
	if o.Every == 0 {
		o.Every = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("audit.open", dir, err)
	}
	l := &Log{dir: dir, o: o, stop: make(chan struct{})}
	cut, err := l.resume()
	if err == nil && cut > 0 {
		err = l.Append(Entry{Method: "audit.cut", Outcome: Failed, Kind: string(turnstone.KindDead),
			Count: int(cut)})
	}
	if err != nil {
		if l.file != nil {
			_ = l.file.Close()
		}
		return nil, err
	}
	l.done.Go(l.keep)
	return l, nil
}

// resume finds the end of the log, and returns how many bytes of a cut line it removed.
func (l *Log) resume() (cut int64, err error) {
	names, err := files(l.dir)
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return 0, l.next()
	}
	name := names[len(names)-1]
	path := filepath.Join(l.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, failed("audit.open", path, err)
	}
	l.file = f
	first, _ := number(name)
	l.seq = first - 1
	whole, err := lines(f, func(n int, text []byte) error {
		e, err := parse(path, n, text)
		if err != nil {
			return err
		}
		l.seq, l.prev = e.Seq, digest(text)
		return nil
	})
	if err != nil {
		return 0, err
	}
	l.size = whole
	if whole == 0 && first > 1 && len(names) > 1 { // a crash came between the file and its first line
		if l.prev, err = last(filepath.Join(l.dir, names[len(names)-2])); err != nil {
			return 0, err
		}
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil && end > whole {
		err = f.Truncate(whole)
	}
	return end - whole, failed("audit.open", path, err)
}

// last returns the digest of a file's last line.
func last(path string) (prev string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", failed("audit.open", path, err)
	}
	defer func() { _ = f.Close() }()
	_, err = lines(f, func(_ int, text []byte) error { prev = digest(text); return nil })
	return prev, err
}

// next begins the file of the next line. The caller has l.mu, except in Open.
func (l *Log) next() error {
	path := filepath.Join(l.dir, fmt.Sprintf("%016d%s", l.seq+1, extension))
	if l.file != nil {
		if err := l.file.Sync(); err != nil {
			return failed("audit.append", path, err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = syncFolder(l.dir)
	}
	if err != nil {
		if f != nil {
			_ = f.Close()
			_ = os.Remove(path)
		}
		return failed("audit.append", path, err)
	}
	if l.file != nil {
		_ = l.file.Close() // it is synced
	}
	l.file, l.size = f, 0
	return nil
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Ready returns an error if lines cannot be written, of kind Exhausted if the disk is full: then
// nothing should be done that needs one. It tries again to write those that wait.
func (l *Log) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed()
	}
	if l.fault == nil {
		return nil
	}
	return l.retry()
}

func errClosed() error {
	return turnstone.Errorf("audit.append", turnstone.KindUnavailable, "the audit log", "is closed")
}

// Append adds a line. It is written when Append returns, and synced within Options.Sync. If it
// cannot be written, it waits in memory and in the server's log, and the error is that of Ready.
func (l *Log) Append(e Entry) error { return l.append(e, false) }

// AppendSynced is Append, and also waits until the line is on the disk.
func (l *Log) AppendSynced(e Entry) error { return l.append(e, true) }

func (l *Log) append(e Entry, sync bool) error {
	if e.Time.IsZero() {
		e.Time = l.o.Now()
	}
	e.Time = e.Time.UTC().Round(0)
	e.Controller = l.o.Controller
	e.bound()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed()
	}
	if l.fault != nil || l.write(e) != nil {
		return l.wait(e)
	}
	if !sync {
		return nil
	}
	return l.sync()
}

// write writes a line. The caller has l.mu.
func (l *Log) write(e Entry) error {
	e.Seq, e.Prev = l.seq+1, l.prev
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if l.size > 0 && l.size+int64(len(text)) >= int64(l.o.Size) {
		if l.fault = l.next(); l.fault != nil {
			return l.fault
		}
	}
	if _, err := l.file.WriteAt(append(text, '\n'), l.size); err != nil {
		_ = l.file.Truncate(l.size) // a line that was cut would spoil the next
		l.fault = failed("audit.append", l.dir, err)
		return l.fault
	}
	l.size += int64(len(text)) + 1
	l.seq, l.prev, l.dirty = e.Seq, digest(text), true
	return nil
}

// wait keeps a line that cannot be written. The caller has l.mu.
func (l *Log) wait(e Entry) error {
	text, _ := json.Marshal(e)
	l.o.Log.Error("a line of the audit log waits: it cannot be written", "line", string(text),
		"error", l.fault)
	if l.failed++; len(l.waiting) < maxWaiting {
		l.waiting = append(l.waiting, e)
	}
	return l.fault
}

// Failures returns the number of entries that could not be written at once.
func (l *Log) Failures() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// retry writes the lines that wait. The caller has l.mu.
func (l *Log) retry() error {
	l.fault = nil
	for len(l.waiting) > 0 {
		if err := l.write(l.waiting[0]); err != nil {
			return err
		}
		l.waiting = l.waiting[1:]
	}
	if err := l.sync(); err != nil {
		return err
	}
	l.o.Log.Info("the audit log can be written again")
	return nil
}

// sync brings the lines to the disk. The caller has l.mu.
func (l *Log) sync() error {
	if !l.dirty {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		l.fault = failed("audit.append", l.dir, err)
		l.o.Log.Error("the audit log cannot be synced", "error", err)
		return l.fault
	}
	l.dirty = false
	return nil
}

// keep syncs lines and writes those about repetitions, until Close.
func (l *Log) keep() {
	sync, tell := time.NewTicker(l.o.Sync), time.NewTicker(l.o.Every)
	defer sync.Stop()
	defer tell.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-sync.C:
			l.mu.Lock()
			if l.fault != nil {
				_ = l.retry()
			} else {
				_ = l.sync()
			}
			l.mu.Unlock()
		case <-tell.C:
			l.tell()
		}
	}
}

// Close writes what waits, and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	was := l.closed
	l.mu.Unlock()
	if was {
		return nil
	}
	close(l.stop)
	l.done.Wait()
	l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.fault
	if err != nil {
		err = l.retry()
	}
	l.closed = true
	return errors.Join(err, l.sync(), failed("audit.append", l.dir, l.file.Close()))
}

// maxText bounds a text of an entry, in bytes.
const maxText = 256

// bound cuts texts that a caller has chosen.
func (e *Entry) bound() {
	for _, s := range []*string{&e.Tenant, &e.Subject, &e.Issuer, &e.Token, &e.Address, &e.Method,
		&e.Object, &e.Outcome, &e.Kind} {
		if len(*s) > maxText {
			*s = (*s)[:maxText]
		}
		*s = strings.ToValidUTF8(*s, "�")
	}
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func failed(op turnstone.Op, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case turnstone.IsFull(err):
		return turnstone.Errorf(op, turnstone.KindExhausted, "the audit log "+path,
			"its disk is full: %w", err).WithHint("free some space on the disk of the audit log")
	}
	return turnstone.NewError(op, turnstone.KindUnavailable, "the audit log "+path, err).
		WithHint("let the server's operator repair it: nothing is changed without a line there")
}
