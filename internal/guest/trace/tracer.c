//go:build ignore

// The tracer's half that lives inside a step's bash. It is preloaded, finds the one function of
// bash that runs every command, and notes into shared memory what ran, when and how it ended.
//
// It needs no C library: nothing but weak symbols, so that it loads wherever bash does. It prints
// nothing, allocates nothing, takes no lock, keeps no descriptor, and changes neither errno nor
// signals. What it does not recognise exactly it leaves alone, with a reason in the shared memory.
//
// The layouts of bash's commands are those of command.h in bash 4.4 to 5.3. That of the shared
// memory is repeated in layout.go; a test compares them.

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak))

// ---- bash ----

enum { cm_for, cm_case, cm_while, cm_if, cm_simple, cm_select, cm_connection, cm_function_def, cm_until,
	cm_group, cm_arith, cm_cond, cm_arith_for, cm_subshell, cm_coproc, k_pipeline, k_list };
enum { r_input = 1, r_inputa = 2, r_heredoc = 4, r_herestring = 5, r_heredoc_tabs = 8, r_inout = 11 };
enum { NO_PIPE = -1, W_QUOTED = 2, REDIR_VARASSIGN = 1, INVERT_RETURN = 4, IN_COMSUB = 4, IN_PROCSUB = 0x20 };

typedef struct { char *word; int flags; } word_t;
typedef struct words { struct words *next; word_t *word; } words_t;
typedef union { int fd; word_t *word; } redirectee_t;
typedef struct redirect {
	struct redirect *next;
	redirectee_t redirector;
	int rflags, flags, instruction;
	redirectee_t redirectee;
	char *eof;
} redirect_t;
typedef struct { int flags, line; words_t *words; redirect_t *redirects; } simple_t;
typedef struct { int flags, line; word_t *word; } named_t; // for, select, case, function
typedef struct { int flags, line; words_t *exp; } arith_t;
typedef struct { int flags, line; } lined_t; // cond, arith_for
struct command;
typedef struct { int flags, line; struct command *command; } subshell_t;
typedef struct { int flags; struct command *first; struct command *second; int connector; } pair_t; // if, while, group, connection
typedef struct { int flags; char *name; struct command *command; } coproc_t;
typedef struct command { int type, flags, line; redirect_t *redirects; void *value; } command_t;

typedef int run_t(command_t *, int, int, int, void *);
extern run_t execute_command_internal WEAK;
extern void maybe_make_export_env(void) WEAK;
extern char **export_env WEAK;
extern const char *const dist_version WEAK;
extern char *the_current_working_directory WEAK;
extern int last_command_exit_value WEAK, subshell_environment WEAK;
extern int running_trap WEAK, lastpipe_opt WEAK, breaking WEAK, continuing WEAK, read_but_dont_execute WEAK;

// ---- the C library ----

struct ts { int64_t sec, nsec; };
extern void *dlsym(void *, const char *) WEAK;
extern int clock_gettime(int, struct ts *) WEAK;
extern int *__errno_location(void) WEAK;
extern int fflush(void *) WEAK;
extern char **__environ WEAK;
extern const char *gnu_get_libc_version(void) WEAK;

// ---- shared memory ----

#define MAGIC 0x31435254u // "TRC1"
enum { MAX_SITES = 4096, MAX_RECORDS = 10000, PER_SITE = 100, TEXT = 200, BUCKETS = 8192, TOPS = 256,
	AUX = 1 << 20, STATE = 4 << 20, INPUT = 64 << 10, NAME = 256 };
enum { tracing = 1, not_bash, other_version, other_code, no_memory, no_dlsym, other_machine, odd_command };
enum { f_async = 1, f_pipe_in = 2, f_pipe_out = 4, f_left = 8, f_program = 16, f_substituted = 32, f_exit = 64,
	f_out0 = 128, f_out1 = 256, f_err0 = 512, f_err1 = 1024, f_signal = 2048, f_negated = 4096, f_trap = 8192 };
enum { in_inherited, in_pipe, in_heredoc, in_file, in_other };
enum { rec_free, rec_open, rec_closed };

struct stream { uint32_t seq, pad; uint64_t count; char rest[48]; };
struct header {
	uint32_t magic, size, reason;
	int32_t pid;
	uint64_t start;
	uint32_t next_record, next_site;
	uint64_t commands, dropped, siteless;
	uint32_t state, state_len;
	uint32_t replaced, replaced_len;
	char name[NAME];
	uint32_t ended;
	int32_t exit;
	uint32_t aux_next, pad;
	char rest[40];
	struct stream streams[2];
	struct { uint32_t pid, record; } tops[TOPS];
	char tail[4096 - 512 - 8 * TOPS];
};
struct site {
	uint64_t hash;
	uint32_t ready, kind;
	int32_t line;
	uint32_t len, records, cut;
	uint64_t count, failures, time;
	char text[TEXT];
};
struct record {
	uint32_t state, site, parent, flags;
	int32_t pid, child;
	uint64_t start, end;
	int32_t exit;
	uint32_t in_kind;
	uint64_t out[2], err[2];
	uint32_t in_off, in_len;
	uint64_t in_size;
	uint32_t in_known, pad;
	uint64_t pad2;
};
struct shared {
	struct header h;
	uint32_t buckets[BUCKETS];
	struct site sites[MAX_SITES];
	struct record records[MAX_RECORDS];
	char gap[2304];
	char aux[AUX];
	char state[STATE];
};
_Static_assert(sizeof(struct header) == 4096 && sizeof(struct site) == 256 && sizeof(struct record) == 112, "layout");
_Static_assert(sizeof(struct shared) % 4096 == 0, "pages");

#define add(p, n) __atomic_fetch_add(p, n, __ATOMIC_RELAXED)
#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

// ---- what each process has for itself ----

typedef struct {
	void *addr; // of the hook's frame: what lies deeper in the stack is gone after a longjmp
	command_t *cmd; // only ever compared: it may be gone
	int kind, pid, record, site, nearest; // nearest: the record of this frame or of the next outer one that has one
	int flags, lastpid;
	uint64_t start;
} frame_t;

typedef struct { // a child of this process
	int owner, pid, status;
	int record[2], site[2], flags;
	uint64_t start[2], end;
	int awaited, reaped, done;
} child_t;

enum { MAX_FRAMES = 8192, MAX_CHILDREN = 1024, NEAR = 16 };
static struct shared *mem;
static run_t *orig;

// All that changes from command to command lies together: each page of it is copied once more for every fork.
static struct {
	int depth, base; // frames below base are those of the process that forked this one
	int self, leaving;
	unsigned next, top; // where to look for a free child, and the end of those in use
	child_t near[NEAR];
	frame_t frames[MAX_FRAMES];
	child_t far[MAX_CHILDREN - NEAR];
} local __attribute__((aligned(4096)));
static int main_pid;
static struct { uint64_t dev, ino; int ok; } pipes[2];
static int (*real_fork)(void), (*real_waitpid)(int, int *, int);
static int (*real_execve)(const char *, char *const *, char *const *);
static void (*real_exit)(int);

// ---- system calls: they leave errno alone ----

#if defined(__x86_64__)
static long sys(long n, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
enum { n_read = 0, n_open = 2, n_close = 3, n_brk = 12, n_stat = 4, n_fstat = 5, n_lseek = 8, n_mmap = 9, n_mprotect = 10, n_munmap = 11, n_ioctl = 16,
	n_pread = 17, n_yield = 24, n_nanosleep = 35, n_getpid = 39, n_fork = 57, n_execve = 59, n_wait4 = 61, n_getcwd = 79,
	n_prctl = 157, n_clock = 228, n_exit_group = 231, n_tee = 276, n_pipe2 = 293 };
#define SUPPORTED 1
#else
static long sys(long n, long a, long b, long c, long d, long e, long f) { return -38; }
enum { n_read, n_open, n_close, n_brk, n_stat, n_fstat, n_lseek, n_mmap, n_mprotect, n_munmap, n_ioctl, n_pread, n_yield, n_nanosleep, n_getpid, n_fork,
	n_execve, n_wait4, n_getcwd, n_prctl, n_clock, n_exit_group, n_tee, n_pipe2 };
#define SUPPORTED 0
#endif

static long fails(long r) // a system call's result as the C library gives it
{
	if (r >= 0 || r < -4095)
		return r;
	if (__errno_location)
		*__errno_location() = (int)-r;
	return -1;
}

// In a deterministic sandbox a read of the clock is a system call, which takes longer than many a command. Its kernel
// also shows the time in memory: see runsc/README.md. Other kernels do not know the option.
static const uint64_t *shown_time;

static void find_clock(void)
{
	long at = sys(n_prctl, 0x54757270, 0, 0, 0, 0, 0);
	if (at > 0 && at % 8 == 0)
		shown_time = (const uint64_t *)at;
}

static uint64_t now(void)
{
	struct ts t = { 0, 0 };
	if (shown_time)
		return load(shown_time);
	if (!clock_gettime || clock_gettime(1, &t))
		sys(n_clock, 1, (long)&t, 0, 0, 0, 0);
	return (uint64_t)t.sec * 1000000000u + (uint64_t)t.nsec;
}

static size_t copy(char *to, const char *from, size_t max)
{
	size_t i = 0;
	for (; i < max && from[i]; i++)
		((volatile char *)to)[i] = from[i];
	return i;
}

// ---- where the output stands ----

// offset tells how many bytes have been written to the step's output (0) or error stream (1): what
// was read from the pipe, and what is in it. 0 if the descriptor is not the step's own pipe now.
static int offset(int which, uint64_t *at)
{
	struct stat st;
	if (!pipes[which].ok || sys(n_fstat, which + 1, (long)&st, 0, 0, 0, 0) || st.st_dev != pipes[which].dev ||
		st.st_ino != pipes[which].ino)
		return 0;
	// A deterministic sandbox's kernel tells it, so that the tracer does not wait for the reader.
	static int unknown;
	if (!unknown && !(unknown = sys(n_ioctl, which + 1, 0x54570001, (long)at, 0, 0, 0) != 0))
		return 1;
	struct stream *s = &mem->h.streams[which];
	for (int i = 0; i < 200; i++) {
		uint32_t seq = load(&s->seq);
		if (!(seq & 1)) {
			uint64_t n = load(&s->count);
			int queued = 0;
			if (sys(n_ioctl, which + 1, 0x541B, (long)&queued, 0, 0, 0))
				return 0;
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			if (load(&s->seq) == seq) {
				*at = n + (uint64_t)queued;
				return 1;
			}
		}
		struct ts pause = { 0, 50000 };
		if (i > 60) // the reader was interrupted in its read: 50 us each, 10 ms in all
			sys(n_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
		else if (i > 20)
			sys(n_yield, 0, 0, 0, 0, 0, 0);
	}
	return 0;
}

// ---- sites and records ----

typedef struct { char text[TEXT]; uint32_t len, cut; uint64_t hash; } text_t;

static void append(text_t *t, const char *s)
{
	if (!s)
		return;
	for (; *s; s++) {
		if (t->len == TEXT) {
			t->cut = 1;
			return;
		}
		t->text[t->len++] = *s;
		t->hash = (t->hash ^ (unsigned char)*s) * 0x100000001b3u;
	}
}

static void append_words(text_t *t, words_t *w)
{
	for (int n = 0; w && !t->cut; w = w->next, n++) {
		if (n)
			append(t, " ");
		if (w->word)
			append(t, w->word->word);
	}
}

static int kind_of(command_t *c)
{
	if (c->type != cm_connection)
		return c->type < 0 || c->type > cm_coproc ? -1 : c->type;
	int by = c->value ? ((pair_t *)c->value)->connector : ';';
	return by == '|' ? k_pipeline : by == ';' || by == '\n' || by == '&' ? cm_connection : k_list;
}

// line_of follows a command that keeps no line of its own to the first one in it that does.
static int line_of(command_t *c)
{
	for (int n = 0; c && c->value && n < 256; n++) {
		switch (c->type) {
		case cm_while: case cm_until: case cm_if: case cm_group: case cm_connection:
			c = ((pair_t *)c->value)->first;
			break;
		case cm_coproc:
			c = ((coproc_t *)c->value)->command;
			break;
		default:
			return ((lined_t *)c->value)->line;
		}
	}
	return 0;
}

static void describe(command_t *c, text_t *t)
{
	if (!c->value)
		return;
	switch (c->type) {
	case cm_simple:
		append_words(t, ((simple_t *)c->value)->words);
		break;
	case cm_for: case cm_select: case cm_case: case cm_function_def:
		if (((named_t *)c->value)->word)
			append(t, ((named_t *)c->value)->word->word);
		break;
	case cm_arith:
		append_words(t, ((arith_t *)c->value)->exp);
		break;
	case cm_coproc:
		append(t, ((coproc_t *)c->value)->name);
	}
}

// site finds or makes the entry of what the script says at one place. It returns -1 when the table is full.
static int site(command_t *c, int kind)
{
	text_t t;
	t.len = t.cut = 0;
	int line = line_of(c);
	t.hash = (0xcbf29ce484222325u ^ (uint32_t)line) * 0x100000001b3u;
	t.hash = (t.hash ^ (uint32_t)kind) * 0x100000001b3u;
	describe(c, &t);
	uint32_t at = (uint32_t)(t.hash ^ t.hash >> 29);
	for (int n = 0; n < 64; n++, at++) {
		uint32_t *bucket = &mem->buckets[at % BUCKETS], got = load(bucket);
		if (!got) {
			if (load(&mem->h.next_site) >= MAX_SITES)
				return -1;
			uint32_t id = add(&mem->h.next_site, 1);
			if (id >= MAX_SITES)
				return -1;
			struct site *s = &mem->sites[id];
			s->hash = t.hash, s->kind = (uint32_t)kind, s->line = line, s->len = t.len, s->cut = t.cut;
			for (uint32_t i = 0; i < t.len; i++)
				((volatile char *)s->text)[i] = t.text[i];
			store(&s->ready, 1);
			if (__atomic_compare_exchange_n(bucket, &got, id + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return (int)id;
			store(&s->ready, 0); // another process was first with this bucket
		}
		if (got <= MAX_SITES && mem->sites[got - 1].hash == t.hash && mem->sites[got - 1].line == line)
			return (int)got - 1;
	}
	return -1;
}

static int record(int at)
{
	if (at < 0 || load(&mem->sites[at].records) >= PER_SITE || load(&mem->h.next_record) >= MAX_RECORDS)
		return -1;
	if (add(&mem->sites[at].records, 1) >= PER_SITE)
		return -1;
	uint32_t id = add(&mem->h.next_record, 1);
	return id < MAX_RECORDS ? (int)id : -1;
}

// finish closes a record and accounts for it at its site. flags are those to add.
static void finish(int rec, int at, uint64_t start, int was, int code, int flags, uint64_t end)
{
	if (at >= 0) {
		add(&mem->sites[at].time, end - start);
		if (code && (flags & f_exit))
			add(&mem->sites[at].failures, 1);
	}
	if (rec < 0)
		return;
	struct record *r = &mem->records[rec];
	if (load(&r->state) != rec_open)
		return;
	if (!(was & f_pipe_out) && offset(0, &r->out[1]))
		flags |= f_out1;
	if (offset(1, &r->err[1]))
		flags |= f_err1;
	r->end = end, r->exit = code;
	__atomic_fetch_or(&r->flags, (uint32_t)flags, __ATOMIC_RELAXED);
	store(&r->state, rec_closed);
}

// ---- standard input ----

static uint32_t room(size_t n)
{
	uint32_t at = load(&mem->h.aux_next);
	if (n > INPUT || at > AUX - n || (at = add(&mem->h.aux_next, (uint32_t)n)) > AUX - n)
		return ~0u;
	return at;
}

// keep_text notes a here-document or here-string in which nothing is expanded, from the script's own text.
static void keep_text(struct record *r, redirect_t *d)
{
	word_t *w = d->redirectee.word;
	if (!w || !w->word)
		return;
	const char *s = w->word;
	size_t n = 0;
	int string = d->instruction == r_herestring, literal = !string && (w->flags & W_QUOTED);
	while (s[n])
		if (++n > INPUT - 2)
			return;
	if (string && n > 1 && (s[0] == '\'' || s[0] == '"') && s[n - 1] == s[0]) { // quoted as a whole
		literal = s[0] == '\'';
		s++, n -= 2;
	}
	for (size_t i = 0; i < n; i++) {
		char c = s[i];
		if (c == 1 || c == 127 || (string && (c == '\'' || c == '"' || (c == '~' && s == w->word))))
			return;
		if (!literal && (c == '$' || c == '`' || c == '\\'))
			return;
	}
	uint32_t at = room(n + (size_t)string);
	if (at == ~0u)
		return;
	copy(mem->aux + at, s, n);
	if (string)
		mem->aux[at + n] = '\n';
	r->in_off = at, r->in_len = (uint32_t)n + (uint32_t)string, r->in_size = r->in_len, r->in_known = 1;
}

static void note_input(struct record *r, command_t *c, int async, int pipe_in)
{
	redirect_t *d = c->type == cm_simple && c->value ? ((simple_t *)c->value)->redirects : c->redirects, *last = NULL;
	r->in_kind = pipe_in != NO_PIPE ? in_pipe : async ? in_other : in_inherited; // bash gives an asynchronous command /dev/null
	for (int n = 0; d && n < 64; d = d->next, n++) {
		if (d->rflags & REDIR_VARASSIGN)
			continue;
		if (d->redirector.fd == 0)
			last = d;
	}
	if (!last)
		return;
	switch (last->instruction) {
	case r_heredoc: case r_heredoc_tabs: case r_herestring:
		r->in_kind = in_heredoc;
		keep_text(r, last);
		break;
	case r_input: case r_inputa: case r_inout:
		r->in_kind = in_file;
		break;
	default:
		r->in_kind = in_other;
	}
}

// peek looks at what a program is about to get as a here-document or file, and takes nothing away from it.
static void peek(struct record *r)
{
	struct stat st;
	uint32_t kind = r->in_kind;
	if (r->in_known || (kind != in_heredoc && kind != in_file) || sys(n_fstat, 0, (long)&st, 0, 0, 0, 0))
		return;
	if (S_ISREG(st.st_mode)) {
		long off = sys(n_lseek, 0, 0, 1, 0, 0, 0);
		if (off < 0 || off > st.st_size)
			return;
		uint64_t size = (uint64_t)(st.st_size - off);
		r->in_size = size, r->in_known = 1;
		uint32_t at = size <= INPUT ? room(size) : ~0u;
		if (at == ~0u)
			return;
		long got = sys(n_pread, 0, (long)(mem->aux + at), (long)size, off, 0, 0);
		r->in_off = at, r->in_len = got > 0 ? (uint32_t)got : 0;
		return;
	}
	int queued = 0, fds[2];
	if (!S_ISFIFO(st.st_mode) || kind != in_heredoc || sys(n_ioctl, 0, 0x541B, (long)&queued, 0, 0, 0) || queued < 0)
		return;
	r->in_size = (uint64_t)queued, r->in_known = 1;
	uint32_t at = room((size_t)queued), have = 0;
	if (at == ~0u || !queued || sys(n_pipe2, (long)fds, 02000000 | 04000, 0, 0, 0, 0))
		return;
	long n = sys(n_tee, 0, fds[1], queued, 2, 0, 0);
	while (n > 0 && have < (uint32_t)n) {
		long got = sys(n_read, fds[0], (long)(mem->aux + at + have), n - have, 0, 0, 0);
		if (got <= 0)
			break;
		have += (uint32_t)got;
	}
	sys(n_close, fds[0], 0, 0, 0, 0, 0);
	sys(n_close, fds[1], 0, 0, 0, 0, 0);
	r->in_off = at, r->in_len = have;
}

// ---- children ----

static child_t *child_at(unsigned i)
{
	return i < NEAR ? &local.near[i] : &local.far[i - NEAR];
}

static child_t *child(int pid)
{
	for (unsigned i = 0; i < local.top; i++) {
		child_t *c = child_at(i);
		if (c->owner == local.self && c->pid == pid)
			return c;
	}
	return NULL;
}

static void born(int pid, frame_t *f)
{
	child_t *old = child(pid);
	if (old)
		old->pid = 0; // the number has come again
	for (unsigned n = 0; n < MAX_CHILDREN; n++) {
		// Round the near ones first: the last few ended ones are still asked for.
		unsigned i = n < NEAR ? (local.next + n) % NEAR : n;
		child_t *c = child_at(i);
		if (c->owner == local.self && c->pid && c->pid != pid && !c->reaped)
			continue;
		if (i < NEAR)
			local.next = (i + 1) % NEAR;
		if (i >= local.top)
			local.top = i + 1;
		c->awaited = c->reaped = c->done = 0;
		c->record[0] = f->record, c->site[0] = f->site, c->start[0] = f->start, c->flags = f->flags;
		c->record[1] = c->site[1] = -1;
		c->owner = local.self;
		store(&c->pid, pid);
		return;
	}
}

static int code_of(int status)
{
	return status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff;
}

static void settle(child_t *c)
{
	if (__atomic_exchange_n(&c->done, 1, __ATOMIC_ACQ_REL))
		return;
	int flags = f_exit | (c->status & 0x7f ? f_signal : 0);
	for (int i = 0; i < 2; i++)
		if (i == 0 || c->record[i] >= 0 || c->site[i] >= 0)
			finish(c->record[i], c->site[i], c->start[i], c->flags, code_of(c->status), flags, c->end);
}

// reap runs in a signal handler now and then: it and what it calls touch nothing that a command under way could hold half changed.
static void reap(int pid, int status)
{
	uint64_t end = now();
	uint32_t slot = (uint32_t)pid % TOPS;
	if (mem->h.tops[slot].pid == (uint32_t)pid) { // it became a program inside commands of its own
		uint32_t rec = mem->h.tops[slot].record;
		mem->h.tops[slot].pid = 0;
		for (int n = 0; rec > 0 && rec <= MAX_RECORDS && n < 256; n++) {
			struct record *r = &mem->records[rec - 1];
			if (r->pid != pid)
				break;
			if (load(&r->state) == rec_open)
				finish((int)rec - 1, r->site && r->site <= MAX_SITES ? (int)r->site - 1 : -1, r->start, (int)r->flags, code_of(status),
					f_exit | (n ? f_left : 0) | (status & 0x7f ? f_signal : 0), end);
			rec = r->parent;
		}
	}
	child_t *c = child(pid);
	if (!c)
		return;
	c->status = status, c->end = end;
	store(&c->reaped, 1);
	if (load(&c->awaited))
		settle(c);
}

// ---- the hook ----

static void drop(frame_t *f, int code) // a frame that a longjmp has left, or that ends with its process
{
	finish(f->record, f->site, f->start, f->flags, code, f_exit | f_left, now());
}

static void unwind(int to, int code)
{
	while (local.depth > to && local.depth > local.base)
		drop(&local.frames[--local.depth], code);
}

static void enter(frame_t *f, command_t *c, int kind, int async, int in, int out)
{
	int at = site(c, kind), rec = record(at);
	add(&mem->h.commands, 1);
	if (at >= 0)
		add(&mem->sites[at].count, 1);
	else
		add(&mem->h.siteless, 1);
	if (in == NO_PIPE && out == NO_PIPE && local.depth > 0 && local.frames[local.depth - 1].kind == k_pipeline && local.frames[local.depth - 1].pid == local.self)
		in = 0; // with lastpipe the last stage finds its pipe at descriptor 0 already
	int flags = (async || c->type == cm_coproc ? f_async : 0) | (in != NO_PIPE ? f_pipe_in : 0) | (out != NO_PIPE ? f_pipe_out : 0) |
		(c->flags & INVERT_RETURN ? f_negated : 0) | (&running_trap && running_trap ? f_trap : 0) |
		(&subshell_environment && (subshell_environment & (IN_COMSUB | IN_PROCSUB)) ? f_substituted : 0);
	int parent = local.depth > 0 ? local.frames[local.depth - 1].nearest : -1;
	f->cmd = c, f->kind = kind, f->pid = local.self, f->record = rec, f->site = at, f->lastpid = 0, f->flags = flags;
	f->nearest = rec >= 0 ? rec : parent;
	f->start = now();
	if (rec < 0) {
		add(&mem->h.dropped, 1);
		return;
	}
	struct record *r = &mem->records[rec];
	note_input(r, c, async, in);
	if (out == NO_PIPE && offset(0, &r->out[0]))
		flags |= f_out0;
	if (offset(1, &r->err[0]))
		flags |= f_err0;
	r->site = (uint32_t)at + 1, r->parent = (uint32_t)(parent + 1), r->pid = local.self, r->start = f->start, r->flags = (uint32_t)flags;
	store(&r->state, rec_open);
}

// leave closes a frame whose command has returned, or leaves that to whoever reaps the command's process.
static void leave(frame_t *f, int result)
{
	child_t *c = f->lastpid ? child(f->lastpid) : NULL;
	if (!c || !(f->flags & (f_async | f_pipe_out))) {
		if (c && (f->flags & f_pipe_in) && load(&c->reaped) && !(&lastpipe_opt && lastpipe_opt))
			result = code_of(c->status); // of the stage itself; what was returned is that of the pipeline
		int signaled = c && load(&c->reaped) && (c->status & 0x7f) && code_of(c->status) == result;
		finish(f->record, f->site, f->start, f->flags, result, f_exit | (signaled ? f_signal : 0), now());
		return;
	}
	int slot = c->record[0] == f->record && c->start[0] == f->start ? 0 : 1;
	c->record[slot] = f->record, c->site[slot] = f->site, c->start[slot] = f->start;
	frame_t *outer = local.depth > 0 && local.frames[local.depth - 1].pid == local.self && local.frames[local.depth - 1].kind == k_pipeline ? &local.frames[local.depth - 1] : NULL;
	if (outer && slot == 0 && (outer->flags & f_async) && !(f->flags & f_pipe_out)) {
		outer->lastpid = f->lastpid; // the last stage ends its pipeline, which returns next and sees to both
		return;
	}
	store(&c->awaited, 1);
	if (load(&c->reaped))
		settle(c);
}

// part tells the calls that are no command of their own: sequences; the second call for the same command, in a subshell
// or under "time"; a part of a longer pipeline or list; the body of a function that a simple command calls.
static int part(command_t *c, int kind, int in, int out)
{
	if (kind < 0 || kind == cm_connection)
		return 1;
	if (local.depth == 0)
		return 0;
	frame_t *outer = &local.frames[local.depth - 1];
	if (outer->cmd == c && outer->kind == kind)
		return 1;
	if (outer->pid != local.self)
		return 0;
	return (kind == k_pipeline && outer->kind == k_pipeline && (in != NO_PIPE || out != NO_PIPE)) ||
		(kind == k_list && outer->kind == k_list) ||
		(kind == cm_group && outer->kind == cm_simple);
}

static int hook(command_t *c, int async, int in, int out, void *fds)
{
	void *here = __builtin_frame_address(0);
	if (!c || (&breaking && breaking) || (&continuing && continuing) || (&read_but_dont_execute && read_but_dont_execute))
		return orig(c, async, in, out, fds);
	int kind = kind_of(c);
	if (kind < 0)
		store(&mem->h.reason, odd_command);
	while (local.depth > local.base && (char *)local.frames[local.depth - 1].addr <= (char *)here)
		drop(&local.frames[--local.depth], &last_command_exit_value ? last_command_exit_value : 0);
	if (part(c, kind, in, out))
		return orig(c, async, in, out, fds);
	if (local.depth >= MAX_FRAMES) {
		add(&mem->h.commands, 1);
		add(&mem->h.dropped, 1);
		add(&mem->h.siteless, 1);
		return orig(c, async, in, out, fds);
	}
	int me = local.depth;
	enter(&local.frames[me], c, kind, async, in, out);
	local.frames[me].addr = here;
	local.depth = me + 1;
	int result = orig(c, async, in, out, fds);
	if (local.depth <= me || local.frames[me].pid != local.self || local.frames[me].addr != here)
		return result; // this is a child, on a frame of its parent's
	unwind(me + 1, result);
	frame_t f = local.frames[me];
	local.depth = me;
	leave(&f, result);
	return result;
}

// ---- what bash calls in the C library ----

EXPORT int fork(void)
{
	if (!real_fork)
		return (int)fails(sys(n_fork, 0, 0, 0, 0, 0, 0));
	int pid = real_fork();
	if (!mem)
		return pid;
	if (pid == 0) {
		local.self = (int)sys(n_getpid, 0, 0, 0, 0, 0, 0);
		local.base = local.depth;
		local.next = local.top = 0;
		local.leaving = 0;
	} else if (pid > 0 && local.depth > 0) {
		frame_t *f = &local.frames[local.depth - 1];
		f->lastpid = pid;
		if (f->pid != local.self) { // the frame is its parent's: this one only needs to be known
			frame_t none = { 0 };
			none.record = none.site = -1;
			born(pid, &none);
		} else {
			if (f->record >= 0)
				mem->records[f->record].child = pid;
			born(pid, f);
		}
	}
	return pid;
}

EXPORT int waitpid(int pid, int *status, int options)
{
	int s = 0;
	int got = real_waitpid ? real_waitpid(pid, &s, options) : (int)fails(sys(n_wait4, pid, (long)&s, options, 0, 0, 0));
	if (status && got > 0)
		*status = s;
	if (got > 0 && mem && (s & 0xff) != 0x7f && s != 0xffff)
		reap(got, s);
	return got;
}

EXPORT int execve(const char *path, char *const *argv, char *const *envp)
{
	struct record *r = NULL;
	int main_shell = mem && local.self == main_pid;
	if (mem && local.depth > 0 && local.frames[local.depth - 1].record >= 0) {
		r = &mem->records[local.frames[local.depth - 1].record];
		__atomic_fetch_or(&r->flags, (uint32_t)f_program, __ATOMIC_RELAXED);
		peek(r);
		if (local.depth > local.base) {
			uint32_t slot = (uint32_t)local.self % TOPS;
			mem->h.tops[slot].record = (uint32_t)local.frames[local.depth - 1].record + 1;
			store(&mem->h.tops[slot].pid, (uint32_t)local.self);
		}
	}
	if (main_shell) {
		mem->h.replaced_len = (uint32_t)copy(mem->h.name, path, NAME);
		store(&mem->h.replaced, 1);
	}
	int got = real_execve ? real_execve(path, argv, envp) : (int)fails(sys(n_execve, (long)path, (long)argv, (long)envp, 0, 0, 0));
	if (main_shell)
		store(&mem->h.replaced, 0);
	if (r) {
		__atomic_fetch_and(&r->flags, ~(uint32_t)f_program, __ATOMIC_RELAXED);
		mem->h.tops[(uint32_t)local.self % TOPS].pid = 0;
	}
	return got;
}

static int put(size_t *at, const char *s)
{
	*at += copy(mem->state + *at, s, STATE - *at);
	if (*at >= STATE)
		return 0;
	mem->state[(*at)++] = 0;
	return *at < STATE;
}

// keep_state leaves the working directory and the exported variables: bash's own view of both, as a child would get them.
static void keep_state(void)
{
	struct stat a, b;
	char cwd[4096];
	size_t at = 0;
	const char *dir = &the_current_working_directory ? the_current_working_directory : NULL;
	if (!dir || dir[0] != '/' || sys(n_stat, (long)dir, (long)&a, 0, 0, 0, 0) || sys(n_stat, (long)".", (long)&b, 0, 0, 0, 0) ||
		a.st_dev != b.st_dev || a.st_ino != b.st_ino)
		dir = sys(n_getcwd, (long)cwd, sizeof cwd, 0, 0, 0, 0) > 0 ? cwd : "";
	if (!&export_env || !maybe_make_export_env)
		return;
	maybe_make_export_env();
	int ok = put(&at, dir);
	for (char **e = export_env; ok && e && *e; e++)
		ok = put(&at, *e);
	mem->h.state_len = (uint32_t)at;
	store(&mem->h.state, ok ? 1 : 2);
}

EXPORT void exit(int code)
{
	if (mem && !local.leaving) {
		local.leaving = 1; // what follows calls bash, which may call exit
		unwind(local.base, code & 0xff);
		if (local.self == main_pid) {
			mem->h.exit = code & 0xff;
			keep_state();
			store(&mem->h.ended, 1);
		}
	}
	if (real_exit)
		real_exit(code);
	if (fflush)
		fflush(NULL);
	for (;;)
		sys(n_exit_group, code, 0, 0, 0, 0, 0);
}

// ---- the start ----

// instruction tells the length of one that works at any address, of those with which compilers begin a function; else 0.
HIDDEN int instruction(const unsigned char *p)
{
	if (p[0] == 0xf3 && p[1] == 0x0f && p[2] == 0x1e && p[3] == 0xfa)
		return 4; // endbr64
	int rex = p[0] >= 0x40 && p[0] <= 0x4f;
	const unsigned char *q = p + rex;
	if (q[0] >= 0x50 && q[0] <= 0x57 && (!rex || p[0] == 0x41))
		return rex + 1; // push
	if ((q[0] == 0x89 || q[0] == 0x8b || q[0] == 0x31 || q[0] == 0x33) && q[1] >= 0xc0)
		return rex + 2; // mov, xor between registers
	if (p[0] != 0x48)
		return 0;
	if (q[0] == 0x83 && q[1] == 0xec)
		return 4; // sub $8 bits,%rsp
	if (q[0] == 0x81 && q[1] == 0xec)
		return 7; // sub $32 bits,%rsp
	if (q[0] == 0x8d && q[1] == 0x64 && q[2] == 0x24)
		return 5; // lea 8 bits(%rsp),%rsp
	if (q[0] == 0x8d && q[1] == 0xa4 && q[2] == 0x24)
		return 8;
	return 0;
}

#if SUPPORTED
// near finds a page within a 32-bit jump of p.
static unsigned char *near(uintptr_t p)
{
	for (uintptr_t d = 1 << 20; d < 0x70000000; d += 1 << 20) {
		for (int up = 0; up < 2; up++) {
			uintptr_t want = (p & ~(uintptr_t)4095) + (up ? d : -d);
			if (!up && d + (1 << 20) > p)
				continue;
			long got = sys(n_mmap, (long)want, 4096, 3, 0x100022, -1, 0);
			if (got == (long)want)
				return (unsigned char *)got;
			if (got > 0 || got < -4095)
				sys(n_munmap, got, 4096, 0, 0, 0, 0); // a kernel that takes the address for a hint
		}
	}
	return NULL;
}

static void jump(unsigned char *at, unsigned char *to)
{
	int32_t by = (int32_t)(to - (at + 5));
	at[0] = 0xe9;
	for (int i = 0; i < 4; i++)
		at[i + 1] = (unsigned char)((uint32_t)by >> (8 * i));
}

static int patch(void)
{
	unsigned char *f = (unsigned char *)execute_command_internal;
	int n = 0;
	while (n < 5) {
		int len = instruction(f + n);
		if (!len)
			return other_code;
		n += len;
	}
	unsigned char *page = near((uintptr_t)f);
	if (!page)
		return no_memory;
	for (int i = 0; i < n; i++)
		page[i] = f[i];
	jump(page + n, f + n);
	static const unsigned char absolute[6] = { 0xff, 0x25, 0, 0, 0, 0 }; // jmp *0(%rip)
	for (int i = 0; i < 6; i++)
		page[64 + i] = absolute[i];
	uint64_t to = (uint64_t)(uintptr_t)hook;
	for (int i = 0; i < 8; i++)
		page[70 + i] = (unsigned char)(to >> (8 * i));
	uintptr_t from = (uintptr_t)f & ~(uintptr_t)4095, end = ((uintptr_t)f + 5 + 4095) & ~(uintptr_t)4095;
	if (sys(n_mprotect, (long)page, 4096, 5, 0, 0, 0) || sys(n_mprotect, (long)from, (long)(end - from), 3, 0, 0, 0)) {
		sys(n_munmap, (long)page, 4096, 0, 0, 0, 0);
		return no_memory;
	}
	orig = (run_t *)page;
	jump(f, page + 64);
	sys(n_mprotect, (long)from, (long)(end - from), 5, 0, 0, 0);
	return tracing;
}

static int known_version(void)
{
	const char *v = &dist_version ? dist_version : NULL;
	return v && ((v[0] == '4' && v[1] == '.' && v[2] == '4') || (v[0] == '5' && v[1] == '.' && v[2] >= '0' && v[2] <= '3')) &&
		(v[3] < '0' || v[3] > '9');
}

static int begin(void)
{
	if (!execute_command_internal || !&export_env || !maybe_make_export_env)
		return not_bash;
	if (!known_version())
		return other_version;
	if (!real_fork || !real_waitpid || !real_execve || !real_exit)
		return no_dlsym;
	for (int i = 0; i < 2; i++) {
		struct stat st;
		if (!sys(n_fstat, i + 1, (long)&st, 0, 0, 0, 0) && S_ISFIFO(st.st_mode))
			pipes[i].dev = st.st_dev, pipes[i].ino = st.st_ino, pipes[i].ok = 1;
	}
	if (pipes[0].ok && pipes[1].ok && pipes[0].dev == pipes[1].dev && pipes[0].ino == pipes[1].ino)
		pipes[0].ok = pipes[1].ok = 0;
	return patch();
}
#else
static int begin(void) { return other_machine; }
#endif

// attach maps the step's shared memory, which is the descriptor after the library's own, and closes both.
static struct shared *attach(int fd)
{
	struct stat st;
	struct shared *m = NULL;
	if (!sys(n_fstat, fd + 1, (long)&st, 0, 0, 0, 0) && st.st_size == (long)sizeof *m) {
		long got = sys(n_mmap, 0, sizeof *m, 3, 1, fd + 1, 0);
		if (got > 0 || got < -4095)
			m = (struct shared *)got;
		if (m && (m->h.magic != MAGIC || m->h.size != sizeof *m)) {
			sys(n_munmap, got, sizeof *m, 0, 0, 0, 0);
			m = NULL;
		}
	}
	sys(n_close, fd, 0, 0, 0, 0, 0);
	sys(n_close, fd + 1, 0, 0, 0, 0, 0);
	return m;
}

// end_environment sets where /proc/self/environ ends. Where the kernel does not allow it, zeros stay at its end.
static void end_environment(uint64_t end)
{
	if (sys(n_prctl, 35, 11, (long)end, 0, 0, 0) == 0) // PR_SET_MM, PR_SET_MM_ENV_END: with CAP_SYS_RESOURCE
		return;
	struct { // prctl_mm_map, which needs no privilege but asks for all of it: see proc_pid_stat(5), fields 26 to 51
		uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end, auxv;
		uint32_t auxv_size, exe_fd;
	} m = { 0 };
	char text[1024];
	uint64_t field[64] = { 0 };
	long fd = sys(n_open, (long)"/proc/self/stat", 02000000, 0, 0, 0, 0), n;
	if (fd < 0)
		return;
	n = sys(n_read, fd, (long)text, sizeof text, 0, 0, 0);
	sys(n_close, fd, 0, 0, 0, 0, 0);
	long at = n;
	while (at > 0 && text[at - 1] != ')')
		at--;
	int i = 2;
	for (; at > 0 && at < n && i < 63; at++) {
		if (text[at] == ' ')
			i++;
		else if (text[at] >= '0' && text[at] <= '9')
			field[i] = field[i] * 10 + (uint64_t)(text[at] - '0');
	}
	if (i < 51 || !field[51])
		return;
	m.start_code = field[26], m.end_code = field[27], m.start_stack = field[28], m.start_data = field[45], m.end_data = field[46];
	m.start_brk = field[47], m.brk = (uint64_t)sys(n_brk, 0, 0, 0, 0, 0, 0), m.arg_start = field[48], m.arg_end = field[49];
	m.env_start = field[50], m.env_end = end, m.exe_fd = ~0u;
	sys(n_prctl, 35, 14, (long)&m, sizeof m, 0, 0); // PR_SET_MM_MAP
}

// own tells whether an environment entry is that of this library, and where what follows its descriptor's number begins.
static int own(const char *s, int *fd, size_t *rest)
{
	static const char prefix[] = "LD_PRELOAD=/proc/self/fd/";
	size_t at = 0;
	int digits = 0;
	for (; at < sizeof prefix - 1; at++)
		if (s[at] != prefix[at])
			return 0;
	for (*fd = 0; s[at] >= '0' && s[at] <= '9' && digits < 4; at++, digits++)
		*fd = *fd * 10 + (s[at] - '0');
	*rest = at;
	return digits && (!s[at] || s[at] == ':');
}

// hide takes this library out of the environment, and returns the descriptor that it came from or -1. The entry is
// "LD_PRELOAD=/proc/self/fd/3", and after a colon what the session itself preloads.
static int hide(char **env)
{
	int n = 0, fd = -1;
	size_t at = 0, to = 0;
	while (env && env[n])
		n++;
	int k = n - 1;
	while (k >= 0 && !own(env[k], &fd, &at))
		k--;
	if (k < 0)
		return -1;
	char *s = env[k];
	if (s[at] == ':') {
		to = sizeof "LD_PRELOAD=" - 1;
		for (at++; s[at]; at++)
			s[to++] = s[at];
		s[to++] = 0;
	} else {
		for (int i = k; i < n; i++)
			env[i] = env[i + 1];
	}
	for (size_t i = to; i <= at; i++)
		((volatile char *)s)[i] = 0;
	if (k == n - 1) // nothing follows that would be cut off
		end_environment((uint64_t)(uintptr_t)(s + to));
	return fd;
}

__attribute__((constructor)) static void start(int argc, char **argv, char **env)
{
	int fd = hide(gnu_get_libc_version ? env : &__environ ? __environ : NULL); // musl gives a constructor no arguments
	if (dlsym) {
		real_fork = (int (*)(void))dlsym((void *)-1, "fork");
		real_waitpid = (int (*)(int, int *, int))dlsym((void *)-1, "waitpid");
		real_execve = (int (*)(const char *, char *const *, char *const *))dlsym((void *)-1, "execve");
		real_exit = (void (*)(int))dlsym((void *)-1, "exit");
	}
	struct shared *m = fd >= 0 ? attach(fd) : NULL;
	if (!m)
		return;
	local.self = (int)sys(n_getpid, 0, 0, 0, 0, 0, 0);
	m->h.pid = main_pid = local.self;
	find_clock();
	m->h.start = now();
	mem = m;
	int reason = begin();
	if (reason != tracing)
		mem = NULL;
	store(&m->h.reason, (uint32_t)reason);
}
