//go:build !turnstone_client

package subprocess

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("TURNSTONE_TEST_HOLD") != "" {
		hold()
		return
	}
	os.Exit(m.Run())
}

// hold starts a program that inherits descriptor 3 of this process, reports its start, and waits.
func hold() {
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{os.NewFile(3, "alive")}
	if err := Start(cmd, Options{}); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("started\n")
	_, _ = io.ReadAll(os.Stdin)
}

// TestKilledStarter checks that a program does not outlive its starter, even a killed starter.
func TestKilledStarter(t *testing.T) {
	alive, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.Close() }()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "TURNSTONE_TEST_HOLD=1"), []*os.File{theirs}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_ = alive.SetReadDeadline(time.Now().Add(2 * time.Minute))
	// the pipe ends when the last process with the other end has ended
	if _, err := io.ReadAll(alive); err != nil {
		t.Errorf("the program has outlived who started it: %v", err)
	}
}

// TestStart checks that the program has its own process group, and that the functions run once, in
// order, on a single thread, and not after a failure.
func TestStart(t *testing.T) {
	var said []string
	var threads []int
	note := func(what string) {
		said, threads = append(said, what), append(threads, unix.Gettid())
	}
	ended := make(chan struct{})
	cmd := exec.Command("sh", "-c", "kill -TERM $$")
	group := 0
	err := Start(cmd, Options{
		Before: func() error { note("before"); return nil },
		Started: func() {
			note("started")
			group, _ = unix.Getpgid(cmd.Process.Pid)
		},
		Ended: func(err error) {
			defer close(ended)
			note("ended")
			var exit *exec.ExitError
			if !errors.As(err, &exit) ||
				exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
				t.Error(err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	<-ended
	if len(said) != 3 || said[0] != "before" || said[1] != "started" || said[2] != "ended" ||
		threads[0] != threads[1] || threads[1] != threads[2] || group != cmd.Process.Pid {
		t.Errorf("%q on %d, in group %d of %d", said, threads, group, cmd.Process.Pid)
	}

	wrong := errors.New("wrong")
	never := Options{Started: func() { t.Error("it has started") },
		Ended: func(error) { t.Error("it has ended") }}
	if err := Run(t.Context(), exec.Command("/no/such/program"), never); !errors.Is(err,
		os.ErrNotExist) {
		t.Error(err)
	}
	never.Before = func() error { return wrong }
	if err := Run(t.Context(), exec.Command("true"), never); !errors.Is(err, wrong) {
		t.Error(err)
	}
}

// TestRun checks that a program is killed when its context ends.
func TestRun(t *testing.T) {
	var exit *exec.ExitError
	if err := Run(t.Context(), exec.Command("false"), Options{}); !errors.As(err, &exit) ||
		exit.ExitCode() != 1 {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.Command("sleep", "1000")
	if err := Run(ctx, cmd, Options{Started: cancel}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if cmd.ProcessState == nil {
		t.Error("it still runs")
	}
}

// TestOnThread checks that f does not run on the main thread, even if the first call comes from
// there.
func TestOnThread(t *testing.T) {
	var wg sync.WaitGroup
	for range 50 {
		ids := make(chan [2]int)
		wg.Go(func() {
			onThread(func() { ids <- [2]int{unix.Gettid(), unix.Getpid()} })
		})
		if id := <-ids; id[0] == id[1] {
			t.Error("it runs on the main thread")
		}
	}
	wg.Wait()
}
