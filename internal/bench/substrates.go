package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/driver"
)

// A measurement returns a duration.
type measurement = func(ctx context.Context) (time.Duration, error)

// A column of the table of substrates is one way to run programs. A nil function is not supported.
type column struct {
	title, what string
	host        string // this machine's loopback from its point of view
	slow        bool   // QEMU, beside gVisor

	start, restore, fork, command measurement

	script func(ctx context.Context, text string) (string, error)
	memory func(ctx context.Context) (processMemory, error)

	took   map[string][]time.Duration // durations by row
	held   processMemory
	failed map[string]error // by row; failed rows are not repeated
}

// fail records that a row cannot be measured; the others continue.
func (c *column) fail(row string, err error) {
	if err != nil {
		c.failed[row] = fmt.Errorf("%s, %s: %w (%s)", c.title, row, err, turnstone.HintOf(err))
	}
}

const (
	forkRuns   = 5
	scriptRuns = 3
)

// The rows whose durations do not come from a script.
const (
	rowStart   = "start"
	rowRestore = "restore"
	rowFork    = "fork"
	rowCommand = "first command"
	rowMemory  = "memory"
)

// A script is a measured program. It prints microseconds.
type script struct {
	row  string
	text string
	// print formats a cell of the best run, and of native's.
	print func(took, native time.Duration) string
}

const perSecond = float64(time.Second)

// scripts run in each column. HOST and PORT are the address of the peer, and SIZE is its number of bytes.
func scripts(d size.Divisor) []script {
	loop, calls, execs, mib, files := d.Of(4000000), d.Of(200000), d.Of(200), d.Of(256), d.Of(5000)
	connections, bytes := d.Of(50), float64(d.Of(peerSize))
	return []script{
		{"CPU: a loop in Perl (goal: 0.95 of native)",
			perl(fmt.Sprintf(`my ($x, $s, %%h) = (1, ""); for (1 .. %d) { $x = ($x * 1103515245 + 12345) & `+
				`0x7fffffff; $h{$x %% 1000} += $x; $s .= chr(65 + $x %% 26) if $x %% 64 == 0 }`, loop)),
			func(took, native time.Duration) string {
				return fmt.Sprintf("%.2f s (%.2f)", took.Seconds(), float64(native)/float64(took))
			}},
		{"a system call (`getppid`)", perl(fmt.Sprintf(`getppid for 1 .. %d`, calls)),
			each(calls, time.Microsecond, "µs")},
		{"fork + exec of `/bin/true`, by bash",
			fmt.Sprintf(`for ((i = 0; i < 10; i++)); do /bin/true; done; a=$EPOCHREALTIME; for ((i = 0; i < %d; `+
				`i++)); do /bin/true; done; b=$EPOCHREALTIME; echo $((${b/./} - ${a/./}))`, execs),
			each(execs, time.Millisecond, "ms")},
		{fmt.Sprintf("write of %d MiB, fsync", mib),
			perl(fmt.Sprintf(`my $b = join "", map { chr(int rand 256) } 1 .. 4096; $b x= 256; `+
				`$t = Time::HiRes::time(); open my $f, ">", "/tmp/large" or die $!; `+
				`for (1 .. %d) { for (my $n = 0; $n < length $b;) { $n += syswrite($f, $b, `+
				`length($b) - $n, $n) || die $! } } $f->sync or die $!; `+
				`close $f`, mib), `unlink "/tmp/large"`),
			rate(float64(mib)*(1<<20)/1e6, "MB/s")},
		{count(files) + " files of 1 KB",
			perl(fmt.Sprintf(`my $b = "x" x 1000; mkdir "/tmp/small" or die $!; $t = Time::HiRes::time(); `+
				`for (1 .. %d) { open my $f, ">", "/tmp/small/$_" or die $!; syswrite $f, $b; `+
				`close $f or die $! }`, files),
				fmt.Sprintf(`unlink "/tmp/small/$_" for 1 .. %d; rmdir "/tmp/small"`, files)),
			rate(float64(files), "files/s")},
		{"TCP to this machine",
			perl(dial + `my $b = "x" x 65536; my $s = at(); syswrite $s, "u"; ` +
				`for (1 .. SIZE / 65536) { for (my $n = 0; $n < 65536;) { $n += syswrite($s, $b, ` +
				`65536 - $n, $n) || die $! } } shutdown $s, 1; sysread($s, $b, ` +
				`1) == 1 or die "cut off"`),
			rate(bytes/1e6, "MB/s")},
		{"TCP from this machine",
			perl(dial + `my $s = at(); syswrite $s, "d"; my $all = 0; ` +
				`while (my $n = sysread $s, my $b, 65536) { $all += $n } $all == SIZE or die "$all"`),
			rate(bytes/1e6, "MB/s")},
		{"a connection, until its first byte",
			perl(fmt.Sprintf(dial+`for (1 .. %d) { my $s = at(); syswrite $s, "e"; `+
				`sysread($s, my $b, 1) == 1 or die "cut off" }`, connections)),
			each(connections, time.Millisecond, "ms")},
	}
}

// count returns a number as prose has it.
func count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}

// dial defines a connection to the peer.
const dial = `sub at { my $s; socket($s, PF_INET, SOCK_STREAM, 0) && connect($s, ` +
	`pack_sockaddr_in(PORT, inet_aton("HOST"))) or die $!; $s } at(); $t = Time::HiRes::time(); `

// perl measures a program in Perl, which every Debian has; after runs after the measurement.
func perl(program string, after ...string) string {
	return `exec /usr/bin/perl -MTime::HiRes -MIO::Handle -MSocket -e '$SIG{PIPE} = "IGNORE"; ` +
		`my $t = Time::HiRes::time(); ` + program +
		`; printf "%d\n", (Time::HiRes::time() - $t) * 1e6; ` + strings.Join(after, "; ") + `'`
}

// each divides by n.
func each(n int, unit time.Duration, name string) func(took, native time.Duration) string {
	return func(took, _ time.Duration) string {
		return fmt.Sprintf("%.2f %s", float64(took)/float64(n)/float64(unit), name)
	}
}

// rate returns the number of amount per second.
func rate(amount float64, name string) func(took, native time.Duration) string {
	return func(took, _ time.Duration) string {
		return fmt.Sprintf("%.0f %s", amount/(float64(took)/perSecond), name)
	}
}

// substrates compares the substrates that work here with each other, with their bare programs, and
// with this machine itself.
func (b *bench) substrates(ctx context.Context) error {
	var err error
	if b.peer, err = newPeer(b.divide.Of(peerSize)); err != nil {
		return err
	}
	defer b.peer.close()
	columns, absent, err := b.columns(ctx)
	if err != nil {
		return err
	}
	return b.fill(ctx, columns, func() { b.printSubstrates(columns, absent) })
}

// fill measures the columns and prints them; the error lists all failed measurements.
func (b *bench) fill(ctx context.Context, columns []*column, print func()) error {
	b.measure(ctx, columns)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	print()
	var errs []error
	for _, c := range columns {
		errs = slices.AppendSeq(errs, maps.Values(c.failed))
	}
	return errors.Join(errs...)
}

// columns are the available columns; absent lists the others with the reasons.
func (b *bench) columns(ctx context.Context) (all []*column, absent []string, err error) {
	have := map[string]*product{}
	for _, name := range []string{driver.GVisor, driver.QEMU, driver.Firecracker} {
		p, err := b.product(ctx, name)
		if err != nil {
			absent = append(absent, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		have[name] = p
		slow := name == driver.QEMU && have[driver.GVisor] != nil
		all = append(all, &column{title: name, slow: slow, what: p.driver.Isolation() +
			"; start: `turn run` of one step `true`, the whole process; restore: the driver's " +
			"restore, configure and `true`; fork: `turn sandbox fork`, until the clone has run " +
			"`true`; the rest: in a sandbox, network: through the policy",
			host: "10.0.2.2", start: p.start, restore: p.restore, fork: p.fork, script: p.script,
			memory: p.memory})
	}
	if len(all) == 0 {
		return nil, nil, errors.New(strings.Join(absent, "; "))
	}
	var first *product
	for _, name := range []string{driver.GVisor, driver.QEMU, driver.Firecracker} {
		if first = have[name]; first != nil {
			break
		}
	}
	tree, err := b.makeTree(ctx, first)
	if err != nil {
		return all, absent, err
	}
	if have[driver.GVisor] != nil {
		all = append(all, b.runscColumn(tree))
	}
	if p := have[driver.QEMU]; p != nil {
		b.accel = accelOf(p.driver.Isolation())
		c := b.qemuColumn()
		c.slow = have[driver.GVisor] != nil
		all = append(all, c)
	}
	return append(all, b.nativeColumn(tree)), absent, nil
}

// measure fills the columns, alternately, so that a slow minute affects all of them.
func (b *bench) measure(ctx context.Context, columns []*column) {
	for _, c := range columns {
		c.took, c.failed = map[string][]time.Duration{}, map[string]error{}
	}
	for _, row := range []struct {
		name string
		runs int
		of   func(c *column) measurement
	}{
		{rowStart, b.runs, func(c *column) measurement { return c.start }},
		{rowRestore, b.runs, func(c *column) measurement { return c.restore }},
		{rowFork, b.divide.Of(forkRuns), func(c *column) measurement { return c.fork }},
		{rowCommand, b.runs, func(c *column) measurement { return c.command }},
	} {
		for i := range row.runs + b.warmUps() {
			for _, c := range columns {
				run := row.of(c)
				if run == nil || c.failed[row.name] != nil || b.spared(c) && row.name != rowStart {
					continue
				}
				took, err := run(ctx)
				c.fail(row.name, err)
				if i >= b.warmUps() && err == nil {
					c.took[row.name] = append(c.took[row.name], took)
				}
			}
		}
	}
	for _, c := range columns {
		if c.memory != nil && !b.spared(c) {
			var err error
			c.held, err = c.memory(ctx)
			c.fail(rowMemory, err)
		}
	}
	b.measureScripts(ctx, columns)
}

// spared reports whether a column has only the first row and the last script: a quick run measures the others
// elsewhere in less time.
func (b *bench) spared(c *column) bool { return b.quick() && c.slow }

// measureScripts runs each script in a fresh sandbox of each column; in a quick run all of them in one, because
// a start costs more than what they do.
func (b *bench) measureScripts(ctx context.Context, columns []*column) {
	var groups [][]script
	all := scripts(b.divide)
	for _, s := range all {
		groups = append(groups, []script{s})
	}
	if b.quick() {
		groups = [][]script{all}
	}
	for _, group := range groups {
		for range b.divide.Of(scriptRuns) {
			for _, c := range columns {
				group := group
				if b.spared(c) {
					group = all[len(all)-1:]
				}
				if row := group[0].row; c.script != nil && c.failed[row] == nil {
					c.fail(row, b.runScripts(ctx, c, group))
				}
			}
		}
	}
}

// runScripts runs scripts one after another in one sandbox.
func (b *bench) runScripts(ctx context.Context, c *column, group []script) error {
	if err := b.flush(); err != nil {
		return err
	}
	text := group[0].text
	if len(group) > 1 {
		text = "set -e\n"
		for _, s := range group {
			text += "(" + s.text + ")\n"
		}
	}
	out, err := c.script(ctx, strings.NewReplacer("HOST", c.host, "PORT", b.peer.port, "SIZE",
		strconv.Itoa(b.peer.size)).Replace(text))
	if err != nil {
		return err
	}
	lines := strings.Fields(out)
	if len(lines) != len(group) {
		return fmt.Errorf("%d scripts printed %q", len(group), out)
	}
	for i, s := range group {
		micros, err := strconv.ParseInt(lines[i], 10, 64)
		if err != nil || micros <= 0 {
			return fmt.Errorf("%s printed %q", s.row, lines[i])
		}
		c.took[s.row] = append(c.took[s.row], time.Duration(micros)*time.Microsecond)
	}
	return nil
}

func (b *bench) printSubstrates(columns []*column, absent []string) {
	fmt.Printf("## Substrates\n\n%d starts and restores, %d forks, the best of %d of the rest; "+
		"load of the machine at the end: %s.\n\n|", b.runs, b.divide.Of(forkRuns), b.divide.Of(scriptRuns), load())
	for _, c := range columns {
		fmt.Printf(" | %s", c.title)
	}
	fmt.Printf(" |\n|---|%s\n", strings.Repeat("---|", len(columns)))
	line := func(name string, cell func(c *column) string) {
		fmt.Printf("| %s", name)
		for _, c := range columns {
			text := cell(c)
			if text == "" {
				text = "–" // it failed, or c does not support it
			}
			fmt.Printf(" | %s", text)
		}
		fmt.Println(" |")
	}
	median := func(c *column, row string, p int) string {
		if len(c.took[row]) == 0 {
			return ""
		}
		return ms(quantile(c.took[row], p))
	}
	line("start, p50", func(c *column) string { return median(c, rowStart, 50) })
	line("start, p99", func(c *column) string { return median(c, rowStart, 99) })
	line("restore, p50", func(c *column) string { return median(c, rowRestore, 50) })
	line("live fork, p50", func(c *column) string { return median(c, rowFork, 50) })
	bare := columns[len(columns)-1] // native
	for _, s := range scripts(b.divide) {
		line(s.row, func(c *column) string {
			if len(c.took[s.row]) == 0 {
				return ""
			}
			return s.print(best(c.took[s.row]), best(bare.took[s.row]))
		})
	}
	line("memory of a clone, private / Pss", func(c *column) string {
		if c.held.pss == 0 {
			return ""
		}
		return mib(c.held.private) + " / " + mib(c.held.pss)
	})
	fmt.Println()
	b.printGoals(columns)
	for _, c := range columns {
		fmt.Printf("- **%s**: %s.\n", c.title, c.what)
	}
	printAbsent(absent)
}

// printAbsent prints the missing measurements, with the reasons.
func printAbsent(absent []string) {
	for _, why := range absent {
		fmt.Printf("- not here: %s.\n", why)
	}
	fmt.Println()
}

// best returns the shortest duration: other load of the machine only makes a program slower.
func best(d []time.Duration) time.Duration { return quantile(d, 0) }

// printGoals compares the goals of this project for gVisor.
func (b *bench) printGoals(columns []*column) {
	find := func(title string) *column {
		for _, c := range columns {
			if c.title == title {
				return c
			}
		}
		return nil
	}
	ours, runsc, own := find(driver.GVisor), find("bare runsc"), find("native")
	if ours == nil || runsc == nil || len(ours.failed)+len(runsc.failed)+len(own.failed) > 0 {
		return
	}
	cpu := scripts(b.divide)[0].row
	fmt.Printf("| gvisor | measured | goal |\n|---|---|---|\n"+
		"| `turn run` of `true` : bare `runsc restore` of the same checkpoint, p50 | %.2f | at "+
		"most %.2f |\n", ratio(ours.took[rowStart], runsc.took[rowStart], 50), restoreGoal)
	fmt.Printf("| CPU, of native | %.2f | at least 0.95 |\n\n",
		ratio(own.took[cpu], ours.took[cpu], 0))
}

// load returns the machine's load average of the last minute.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
