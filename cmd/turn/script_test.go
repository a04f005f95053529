package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/cdp/cdptest"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/keyring/vaulttest"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	homepkg "turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
)

func TestMain(m *testing.M) {
	turn := func() { os.Exit(cli.Main(new(commandLine), checkSchema)) }
	testscript.Main(m, map[string]func(){"turn": turn, "kubectl-turn": turn})
}

// TestScript runs the scripts that start no machine. Each has a separate, empty TURN_HOME.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                commands,
		Condition:           condition(""),
		Setup: func(env *testscript.Env) error {
			env.Setenv("TURN_HOME", filepath.Join(env.WorkDir, "home"))
			past, err := filepath.Abs("testdata/session.tzst") // research, with turns and files
			env.Setenv("PAST", past)
			env.Values[vaultKey{}] = new(*vaulttest.Server)
			return err
		},
	})
}

// longest are the scripts that take longest: they begin first, so that none of them runs alone at the end.
var longest = []string{"remote-operated", "remote-examples", "cuts", "odd", "template-layers", "remote-warm", "remote-sealed"}

// ordered returns the files of a folder's scripts, those that are named first.
func ordered(t *testing.T, dir string, first ...string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	rank := func(file string) int { // of those that are not named: the last
		if i := slices.Index(first, strings.TrimSuffix(filepath.Base(file), ".txtar")); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// TestMachineScript runs the scripts that start machines. Each has a separate TURN_HOME, with the
// templates, kernel, snapshots and verdicts of the home that tests share: they are expensive to
// create, and a script's leftovers are easy to see if no other script runs there.
func TestMachineScript(t *testing.T) {
	shared, built := turntest.Home(t).Root, t.TempDir()
	testscript.Run(t, testscript.Params{
		Files:               ordered(t, "testdata/machine", longest...),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                commands,
		Condition:           condition(shared),
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("TURN_HOME", home)
			env.Setenv("SHARED", shared)
			env.Defer(func() {
				if h := (&homepkg.Dir{Root: home}); h.HasMemory() {
					_ = h.ForgetMemory()
				}
			})
			env.Setenv("BUILT", built)
			env.Values[serversKey{}] = map[string]*scriptServer{}
			env.Values[runningKey{}] = newRunning()
			env.Values[vaultKey{}] = new(*vaulttest.Server)
			env.Values[bucketKey{}] = new(*s3test.Started)
			env.Values[databaseKey{}] = new(*pgtest.Server)
			examples, err := filepath.Abs("../../examples")
			if err != nil {
				return err
			}
			env.Setenv("EXAMPLES", examples)
			// nothing may write while the script's folder is removed
			env.Setenv("TURN_BACKGROUND", "off")
			for _, key := range []string{"TURN_SUBSTRATE", "TURN_RUNSC", "TURN_KERNEL"} {
				if v := os.Getenv(key); v != "" {
					env.Setenv(key, v)
				}
			}
			if err := os.Mkdir(home, 0o700); err != nil {
				return err
			}
			for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
				if err := os.MkdirAll(filepath.Join(shared, part), 0o700); err != nil {
					return err
				}
				if err := os.Symlink(filepath.Join(shared, part),
					filepath.Join(home, part)); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// condition adds conditions to those of scripts. "mounts": a separate mount namespace, with a tmpfs
// in it, is available; this requires root, and not every container allows it. "gvisor": sandboxes
// start in gVisor; the shared home remembers the result. "testkernel": guests boot a kernel for
// tests, under KVM. "go": programs can be built. "full": the run is a full one (package testsize).
func condition(shared string) func(name string) (bool, error) {
	return func(name string) (bool, error) { return holds(shared, name) }
}

func holds(shared, name string) (bool, error) {
	switch name {
	case "stock": // without the client, TestStockClient of internal/cdp fails
		return cdptest.Install(context.Background()) == nil, nil
	case "gvisor":
		c := &driver.Chooser{Home: &homepkg.Dir{Root: shared}}
		_, err := c.Choose(context.Background(), driver.GVisor, driver.Needs{})
		return err == nil, nil
	case "postgres": // its package's tests fail in CI without it
		return pgtest.Installed(), nil
	case "go":
		_, err := exec.LookPath("go")
		return err == nil, nil
	case "testkernel":
		return os.Getenv("TURN_TEST_KVM") != "", nil
	case "full":
		return testsize.Full(), nil
	case "pypi":
		return reachable("https://pypi.org/simple/pandas/"), nil
	case "mounts":
		return exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp").Run() == nil,
			nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

// commands are the commands of scripts in addition to testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"status":    status,
	"await":     await,
	"peak":      peak,
	"clean":     clean,
	"reap":      reap,
	"ask":       ask,
	"send":      send,
	"stock":     stock,
	"web":       web,
	"fetch":     fetch,
	"absent":    absent,
	"unpack":    unpack,
	"registry":  registry,
	"inherit":   inherit,
	"templates": templates,
	"layered":   layered,
	"kernel":    ownKernel,
	"domains":   domains,
	"vault":     vault,
	"bucket":    bucket,
	"database":  database,
	"host":      host,
	"tlsport":   tlsPort,
	"server":    server,
	"client":    client,
	"serving":   serving,
	"front":     front,
	"node":      node,
	"end":       end,
	"attacker":  attacker,
	"devtools":  devtools,
	"restart":   restart,
	"upgrade":   upgrade,
	"joins":     joins,
	"relay":     relayTo,
	"states":    states,
	"mcp":       mcpCalls,
	"model":     model,
}

// builtin are testscript's own commands, which it runs in place of those of the same name.
const builtin = " cd chmod cmp cmpenv cp env exec exists grep kill mkdir mv rm skip stderr stdin " +
	"stdout symlink stop ttyin ttyout unix2dos unquote wait "

// TestScriptCommands: no command of scripts has the name of one of testscript's, which would run in its
// place, and no script ends before its end: "stop" passes.
func TestScriptCommands(t *testing.T) {
	for name := range commands {
		if strings.Contains(builtin, " "+name+" ") {
			t.Errorf("%s is a command of testscript", name)
		}
	}
	paths, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		script, _, _ := bytes.Cut(text, []byte("\n-- "))
		for line := range strings.Lines(string(script)) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "stop" {
				t.Errorf("%s: %q ends the test", path, strings.TrimSpace(line))
			}
		}
	}
}

// status runs a program and checks its exit status: "status 2 turn run x.md". Its outputs go to the
// files out and err.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE PROGRAM [ARG…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := program(ts, args[1:])
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("err"), stderr.Bytes(), 0o600))
	if cmd.ProcessState == nil {
		ts.Fatalf("%v", err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("exit status %d, want %d\nstdout:\n%s\nstderr:\n%s", got, want,
			last(stdout.Bytes()), last(stderr.Bytes()))
	}
}

// program prepares a command in the script's environment. Its standard input is
// the file "stdin", if there is one.
func program(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if p := filepath.Join(dir, args[0]); !strings.ContainsRune(args[0], '/') && isFile(p) {
			path = p
			break
		}
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environ(ts)
	if f, err := os.Open(ts.MkAbs("stdin")); err == nil {
		ts.Defer(func() { _ = f.Close() })
		cmd.Stdin = f
	}
	return cmd
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// environ returns the variables of the script that turn can see.
func environ(ts *testscript.TestScript) []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "TMPDIR", "TURN_HOME", "TURN_AGENT", "TURN_KERNEL",
		"TURN_BACKGROUND", "TURN_SUBSTRATE", "TURN_RUNSC", "TURN_SESSION", "API_TOKEN", "KEY",
		"SSL_CERT_FILE", "TERM", "NO_COLOR", "TURN_HOST", "TURN_TOKEN",
		"TURN_PASSPHRASE_FILE", "VAULT_TOKEN", "TURN_STORE", "AWS_ENDPOINT_URL_S3", "AWS_REGION",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if v := ts.Getenv(key); v != "" {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// last returns the end of b, so that a failure's message stays readable.
func last(b []byte) []byte { return b[max(0, len(b)-4000):] }

// await waits until a file has a line that matches: "await FILE REGEXP".
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE REGEXP")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var text []byte
	for until := time.Now().Add(4 * time.Minute); time.Now().Before(until); time.Sleep(
		50 * time.Millisecond) {
		if text, err = os.ReadFile(ts.MkAbs(args[0])); err == nil && re.Match(text) {
			return
		}
	}
	ts.Fatalf("%s never matched %q:\n%s", args[0], args[1], last(text))
}

// peak runs a program that must succeed, and checks the peak memory of its own process, in MiB:
// "peak 128 turn run x.md". Its output is discarded.
func peak(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: peak MIB PROGRAM [ARG…]")
	}
	limit, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := program(ts, args[1:])
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	ts.Check(cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	most := 0
	for running := true; running; {
		most = max(most, vmHWM(cmd.Process.Pid))
		select {
		case err := <-done:
			if err != nil {
				ts.Fatalf("%v\n%s", err, last(stderr.Bytes()))
			}
			running = false
		case <-time.After(20 * time.Millisecond): //wait: the loop polls
		}
	}
	ts.Logf("most memory: %d MiB", most)
	if most == 0 || most > limit {
		ts.Fatalf("held %d MiB, at most %d are allowed", most, limit)
	}
}

// vmHWM returns a process's peak memory, in MiB (proc(5)); 0 after its end.
func vmHWM(pid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		if fields := strings.Fields(in.Text()); len(fields) > 1 && fields[0] == "VmHWM:" {
			kib, _ := strconv.Atoi(fields[1])
			return kib >> 10
		}
	}
	return 0
}

// clean checks that no sandbox of the script's TURN_HOME remains: no file in sandboxes/, and no
// process that has one open, even without a name. It waits for the end of killed
// processes.
func clean(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 0 {
		ts.Fatalf("usage: clean")
	}
	home := ts.Getenv("TURN_HOME")
	var left []string
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(
		50 * time.Millisecond) {
		left = leftovers(home)
		if (len(left) > 0) == neg {
			return
		}
	}
	if neg {
		ts.Fatalf("no sandbox is there")
	}
	ts.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
}

// forsaken reports whether path is the folder, or its lock, of a gVisor sandbox whose process was
// killed: the next start removes them.
func forsaken(path string) bool {
	if !strings.HasPrefix(filepath.Base(path), "gvisor-") {
		return false
	}
	lock, err := homepkg.TryAcquire(strings.TrimSuffix(path, ".lock") + ".lock")
	if err != nil || lock == nil {
		return false
	}
	lock.Release()
	return true
}

func leftovers(home string) []string {
	var left []string
	entries, _ := os.ReadDir(filepath.Join(home, "sandboxes"))
	for _, e := range entries {
		path := filepath.Join(home, "sandboxes", e.Name())
		if !forsaken(path) {
			left = append(left, path)
		}
	}
	// other users' processes cannot be read, and do not belong to the test
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range open {
		if file, err := os.Readlink(fd); err == nil && strings.HasPrefix(file, home+"/sandboxes/") {
			left = append(left, fd+" -> "+file)
		}
	}
	return left
}
