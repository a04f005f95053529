package trace

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

const preload = "LD_PRELOAD="

// A Tracer makes Recorders. It is safe for concurrent use.
type Tracer struct {
	lib *os.File // sealed
}

// New returns a tracer. The error is of kind Unavailable if the program was built
// without the library, or the kernel has no memory files.
func New() (*Tracer, error) {
	b, err := library()
	if err != nil {
		return nil, err
	}
	f, err := memory("turnstone-tracer", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(b); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err == nil { // the loader would complain on the step's standard error
		var code []byte
		if code, err = unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err == nil {
			err = unix.Munmap(code)
		}
	}
	if err != nil {
		f.Close()
		return nil, fault("trace.load", err)
	}
	return &Tracer{lib: f}, nil
}

// Close releases the library. Recorders that have been started go on.
func (t *Tracer) Close() { t.lib.Close() }

func memory(name string, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fault("trace.memory", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func fault(op turnstone.Op, err error) error {
	return turnstone.NewError(op, turnstone.KindUnavailable, "tracer", err).
		WithHint("memory files (memfd_create) are needed; the step can run without a trace")
}

// A Recorder collects what one step's shell does. Its methods may be called from
// different goroutines, Reading and Read of one stream from one at a time.
type Recorder struct {
	env  []string
	lib  *os.File
	file *os.File // nil once started

	// While a read is under way the shell waits for its end: streams are not to wait
	// for what else is done here.
	streams sync.Mutex // before mu
	reads   [2]struct {
		seq   uint32
		count uint64
	}

	mu        sync.Mutex
	mem       shared // nil once finished; set with both locks held
	delivered []bool
	from      int // all before it have been delivered
	sites     map[int]Site
	pid       int
	report    *Report
}

// Record prepares to record one step whose environment is env. The shell is started
// with Env and, from descriptor 3 on, Files; it must be one that Check accepts, and
// run in this process's own root.
func (t *Tracer) Record(env []string) (*Recorder, error) { return t.RecordIn(-1, env) }

// RecordIn is Record for a shell whose root is the open directory root. The error is
// of kind Unavailable if there is no /proc in it: the loader could not find the
// library and would say so on the step's standard error.
func (t *Tracer) RecordIn(root int, env []string) (*Recorder, error) {
	if err := checkProc(root); err != nil {
		return nil, turnstone.NewError("trace.record", turnstone.KindUnavailable, "/proc", err).
			WithHint("mount /proc where steps run; the step can run without a trace")
	}
	f, err := memory("turnstone-trace", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(lenShared); err != nil {
		f.Close()
		return nil, fault("trace.record", err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, lenShared, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fault("trace.record", err)
	}
	// A step holds no descriptor of it, but could open one through /proc: it must
	// not be able to cut off what is mapped here.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		_ = unix.Munmap(b)
		return nil, fault("trace.record", err)
	}
	r := &Recorder{lib: t.lib, file: f, mem: b, delivered: make([]bool, MaxRecords), sites: make(map[int]Site)}
	*r.mem.word(0), *r.mem.word(4) = magic, lenShared
	// The library's own entry stands last, where it can be taken out without a trace.
	own := preload + "/proc/self/fd/3"
	for _, kv := range env {
		if user, ok := strings.CutPrefix(kv, preload); ok {
			if user != "" {
				own = preload + "/proc/self/fd/3:" + user
			}
			continue
		}
		r.env = append(r.env, kv)
	}
	r.env = append(r.env, own)
	return r, nil
}

// checkProc says whether the kernel's own /proc is below root, or below this process's
// root if that is negative. What a step put in its place is not. It may be that of a PID
// namespace that this process is not in, and has no "self" then that leads anywhere.
func checkProc(root int) error {
	flags := uint64(unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC)
	var fd int
	var err error
	if root < 0 {
		fd, err = unix.Open("/proc", int(flags), 0)
	} else {
		fd, err = unix.Openat2(root, "/proc", &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	var self unix.Stat_t
	if fs.Type != unix.PROC_SUPER_MAGIC || unix.Fstatat(fd, "self", &self, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return errors.New("it is not the kernel's")
	}
	return nil
}

// Env returns the environment with which to start the shell.
func (r *Recorder) Env() []string { return append([]string(nil), r.env...) }

// Files returns what the shell has to inherit from descriptor 3 on. The files stay
// the recorder's; they are valid until Started or Finish.
func (r *Recorder) Files() []*os.File { return []*os.File{r.lib, r.file} }

// Started says that the shell runs, as process pid. It closes what only the shell
// needs.
func (r *Recorder) Started(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pid = pid
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// Reading says that bytes are about to be read, without blocking, from the step's
// stream: 1 is its standard output, 2 its standard error. Read must follow.
func (r *Recorder) Reading(stream int) { r.advance(stream, 0) }

// Read says that n bytes were read since Reading; n is 0 if there were none.
func (r *Recorder) Read(stream int, n int) { r.advance(stream, n) }

func (r *Recorder) advance(which, n int) {
	if which != 1 && which != 2 {
		return
	}
	r.streams.Lock()
	defer r.streams.Unlock()
	if r.mem == nil {
		return
	}
	own := &r.reads[which-1]
	own.seq++
	own.count += uint64(max(0, n))
	off := stream(which)
	// The count first: a reader takes it only when the sequence is even again.
	atomic.StoreUint64(r.mem.long(off+8), own.count)
	atomic.StoreUint32(r.mem.word(off), own.seq)
}

// site returns a site once it can be decoded; what it says is then kept, since the
// step could change it.
func (r *Recorder) site(i int) (Site, bool) {
	if s, ok := r.sites[i]; ok {
		return s, true
	}
	raw := r.mem.site(i)
	s, ok := decodeSite(i, &raw)
	if ok {
		r.sites[i] = s
	}
	return s, ok
}

func (r *Recorder) decode(id int) (Record, bool) {
	raw := r.mem.record(id)
	at := raw.u32(4)
	if at == 0 || at > MaxSites {
		return Record{}, false
	}
	site, ok := r.site(int(at - 1))
	if !ok {
		return Record{}, false
	}
	return r.mem.decodeRecord(id, &raw, r.mem.load64(offStart), &site)
}

// Drain returns the records of commands that have ended since the last call. What
// is still open at the end of the step is in the Report only. A record's ID and
// Site are the same as in the Report.
func (r *Recorder) Drain() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	var out []Record
	next := int(min(r.mem.load(offNextRecord), MaxRecords))
	for i := r.from; i < next; i++ {
		if r.delivered[i] || r.mem.load(offRecords+i*lenRecord) != recordClosed {
			continue
		}
		if rec, ok := r.decode(i); ok {
			out = append(out, rec)
		}
		r.delivered[i] = true
	}
	for r.from < next && r.delivered[r.from] {
		r.from++
	}
	return out
}
