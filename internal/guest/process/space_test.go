package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// This test plays a machine's first process, in separate namespaces.
const inSpace = "TURN_TEST_SPACE"

// TestSpace: processes neither see nor reach the agent, have their own numbers, and can be started
// again after the namespace's first process was killed.
func TestSpace(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), inSpace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(string(out), "cannot play a machine") {
		t.Skip("no namespaces: ", err, string(out))
	}
	if err != nil || !strings.HasSuffix(string(out), "all is well\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func playMachine() (code int) {
	if err := tryMachine(); err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("all is well")
	return 0
}

func tryMachine() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return fmt.Errorf("cannot play a machine: %w", err)
	}
	shown := 0
	reaper := NewInitReaper()
	s, err := NewSpace(reaper, "/proc", func() error { shown++; return nil })
	if err != nil {
		return err
	}
	table, err := NewTable(Options{Reaper: reaper, Space: s})
	if err != nil {
		return err
	}
	for n := 1; n <= 3; n++ {
		if err := useSpace(table, s); err != nil {
			return fmt.Errorf("namespace %d: %w", n, err)
		}
		if err := parkInSpace(table); err != nil {
			return fmt.Errorf("parked in namespace %d: %w", n, err)
		}
		if shown != n {
			return fmt.Errorf("/proc was shown %d times in %d namespaces", shown, n)
		}
		if err := killFirst(s); err != nil {
			return err
		}
	}
	return table.Close()
}

// parkInSpace uses a parked process, and ends one that is not used.
func parkInSpace(table *Table) error {
	if err := table.Park("bash", "", os.Environ()); err != nil {
		return err
	}
	was := table.wasParked()
	for _, argv := range [][]string{{"bash", "-c", "echo $PPID $0; kill -9 $$", "x"}, {"sh", "-c", "kill -9 $$"}} {
		p, err := table.Start(Spec{Argv: argv, Env: os.Environ(), Cwd: "/"})
		if err != nil {
			return err
		}
		<-p.Done()
		if n := table.wasParked(); n != 0 || p.Exit().Code != 137 || (p.PID == was) != (argv[0] == "bash") {
			return fmt.Errorf("PID %d of %d, still %d, exit %+v", p.PID, was, n, p.Exit())
		}
		if err := table.Park("bash", "", os.Environ()); err != nil {
			return err
		}
	}
	return nil // the namespace's end ends the last one
}

// killFirst ends the namespace, as root can if the kernel does not protect it.
func killFirst(s *Space) error {
	pids, err := s.proc.processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid != 1 && s.number(pid) == 1 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			<-s.ended
			return nil
		}
	}
	return fmt.Errorf("none of %v is the first", pids)
}

func useSpace(table *Table, s *Space) error {
	for _, tt := range []struct{ script, want string }{
		{"echo $PPID; cat /proc/1/comm; cat /proc/1/cmdline | tr '\\0' ' '; ls /proc/1/fd | wc -l",
			"0\n*\ninit /proc 0\n"},
		{"for p in /proc/[0-9]*; do readlink $p/exe; done | grep -c process.test; ls -d " +
			"/proc/1/root/tmp", "0\n"},
		{"readlink /proc/1/root /proc/1/cwd", "/proc\n/proc\n"},
		{"mkdir /tmp/p$$ && mount -t proc p /tmp/p$$ && readlink /tmp/p$$/1/exe; umount " +
			"/tmp/p$$; rmdir /tmp/p$$", "/memfd:bin/init (deleted)\n"},
		{"umount -l /proc; ls /proc | wc -l; mount -t proc p /proc", "0\n"},
		{"grep CapEff /proc/1/status; echo $((0x$(sed -n 's/CapBnd:.//p' /proc/self/status) & " +
			"0x430000))", "CapEff:\t0000000000000000\n0\n"},
		{"(sh -c 'sleep 0.05; exit 7' &); sleep 0.3; grep -l '^State:.Z' /proc/[0-9]*/status | " +
			"wc -l", "0\n"},
	} {
		var out bytes.Buffer
		p, err := table.Start(Spec{Argv: []string{"/bin/sh", "-c", tt.script},
			Env: os.Environ(), Cwd: "/"})
		if err != nil {
			return err
		}
		<-p.Done()
		r, _ := p.Out[1].Attach(context.Background(), 0, Follower)
		for {
			data, _, ok := r.Next(1 << 20)
			if !ok {
				break
			}
			out.Write(data)
		}
		r.Close()
		if got := out.String(); !like(got, tt.want) {
			return fmt.Errorf("%s: %q, want %q", tt.script, got, tt.want)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	waits, err := table.Start(Spec{Argv: []string{"/bin/sleep", "1000"},
		Env: os.Environ(), Cwd: "/"})
	if err != nil {
		return err
	}
	if n := waits.Number(); n <= 1 || n == waits.PID {
		return fmt.Errorf("the number of %d is %d", waits.PID, n)
	}
	p, err := table.Start(Spec{Argv: []string{"/bin/sh", "-c", "kill -9 1; kill -STOP 1; exit 3"},
		Env: os.Environ(), Cwd: "/"})
	if err != nil {
		return err
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 3 {
		return fmt.Errorf("it ended with %+v, %v", exit, err)
	}
	return nil
}

// like compares lines; "*" matches any.
func like(got, want string) bool {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	if len(g) != len(w) {
		return false
	}
	for i := range g {
		if w[i] != "*" && g[i] != w[i] {
			return false
		}
	}
	return true
}
