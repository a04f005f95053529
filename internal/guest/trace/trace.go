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

// A Tracer creates Recorders. It is safe for concurrent use.
type Tracer struct {
	lib *os.File // sealed
}

// New returns a tracer. The error is of kind Unavailable if the program was built without the
// library, or the kernel has no memory files.
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
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err == nil { // the loader would complain on the step's standard error
		var code []byte
		code, err = unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_EXEC,
			unix.MAP_PRIVATE)
		if err == nil {
			err = unix.Munmap(code)
		}
	}
	if err != nil {
		f.Close()
		return nil, fault("trace.load", err)
	}
	return &Tracer{lib: f}, nil
}

// Close releases the library. Started Recorders continue.
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
		WithHint("use a kernel with memory files (memfd_create), or run the step without a trace")
}

// A Recorder collects the commands of a step's shell. Its methods may be called from different
// goroutines, but Reading and Read of a stream from one goroutine at a time.
type Recorder struct {
	env  []string
	lib  *os.File
	file *os.File // nil after the start

	// The shell waits while a read is in progress. A separate mutex prevents streams from waiting
	// for other work.
	streams sync.Mutex // locked before mu
	reads   [2]struct {
		seq   uint32
		count uint64
	}

	mu        sync.Mutex
	mem       shared // nil after Finish; set with both locks held
	delivered []bool
	from      int // all earlier records have been delivered
	sites     map[int]Site
	pid       int
	report    *Report
}

// Record prepares to record a step whose environment is env. Start the shell with Env and, from
// descriptor 3 on, Files; Check must accept the shell, and it must run in this process's root.
func (t *Tracer) Record(env []string) (*Recorder, error) { return t.RecordIn(-1, env) }

// RecordIn is Record for a shell whose root is the open directory root. The error is of kind
// Unavailable if root has no /proc: the loader would not find the library and would say so on the
// step's standard error.
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
	// A step has no descriptor of the memory, but could open it through /proc: it must not be able
	// to truncate the mapped file.
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	if err != nil {
		f.Close()
		_ = unix.Munmap(b)
		return nil, fault("trace.record", err)
	}
	r := &Recorder{lib: t.lib, file: f, mem: b, delivered: make([]bool, MaxRecords),
		sites: make(map[int]Site)}
	*r.mem.word(0), *r.mem.word(4) = magic, lenShared
	// The library's own entry is last, so that its removal restores the original value.
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

// checkProc reports whether the kernel's own /proc is below root, or below this process's root if
// root is negative. A replacement by the step is rejected. The /proc may belong to a PID namespace
// without this process, and its "self" is then invalid.
func checkProc(root int) error {
	flags := uint64(unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC)
	var fd int
	var err error
	if root < 0 {
		fd, err = unix.Open("/proc", int(flags), 0)
	} else {
		fd, err = unix.Openat2(root, "/proc",
			&unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	var self unix.Stat_t
	if fs.Type != unix.PROC_SUPER_MAGIC ||
		unix.Fstatat(fd, "self", &self, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return errors.New("it is not the kernel's /proc")
	}
	return nil
}

// Env returns the environment for starting the shell.
func (r *Recorder) Env() []string { return append([]string(nil), r.env...) }

// Files returns the files that the shell inherits from descriptor 3 on. The Recorder owns the
// files; they are valid until Started or Finish.
func (r *Recorder) Files() []*os.File { return []*os.File{r.lib, r.file} }

// Started reports that the shell runs as process pid. It closes the files that only the shell
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

// Reading announces a read, without blocking, from the step's stream: 1 is standard output, 2
// standard error. Read must follow.
func (r *Recorder) Reading(stream int) { r.advance(stream, 0) }

// Read reports that n bytes were read since Reading; n is 0 if there were none.
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
	// The count first: a reader uses it only when the sequence is even again.
	atomic.StoreUint64(r.mem.long(off+8), own.count)
	atomic.StoreUint32(r.mem.word(off), own.seq)
}

// site returns a site if it can be decoded. The result is cached because the step could change the
// memory.
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

// Drain returns the records of commands that have ended since the last call. Commands that are open
// at the end of the step are only in the Report. A record's ID and Site equal those in the Report.
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
