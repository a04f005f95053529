package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/machine"
)

// A vsock is the device: a unix socket on which the host asks for ports of the guest.
type vsock struct {
	CID  uint32 `json:"guest_cid"`
	Path string `json:"uds_path"`

	fault string
	l     net.Listener
	guest chan net.Conn // connections for the agent's port

	mu      sync.Mutex
	tries   int
	stopped bool
	open    []net.Conn
}

func (s *vsock) listen() (err error) {
	s.guest = make(chan net.Conn)
	if s.l, err = net.Listen("unix", s.Path); err != nil {
		return says("Cannot create backend for vsock device: %v", err)
	}
	return nil
}

// serve starts the guest's agent, or an echo server, and the host's side.
func (s *vsock) serve() error {
	port := machine.NewListenerPort(s)
	// a jail has no /dev/null, and no agent works in it
	if _, err := os.Stat(os.DevNull); err != nil {
		go func() { _, _ = io.Copy(port, port) }()
	} else {
		a, err := agent.New(agent.Options{RunDir: "agent/run", Cwd: "/"})
		if err != nil {
			return err
		}
		go func() { _ = a.Serve(context.Background(), port) }()
	}
	go func() {
		for {
			conn, err := s.l.Accept()
			if err != nil {
				return
			}
			go s.connect(conn)
		}
	}()
	return nil
}

// connect handles a CONNECT.
func (s *vsock) connect(conn net.Conn) {
	line, err := bufio.NewReaderSize(io.LimitReader(conn, 32), 16).ReadString('\n')
	port, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "CONNECT ")
	n, parseErr := strconv.ParseUint(port, 10, 32)
	if err != nil || !ok || parseErr != nil || n != machine.VsockPort {
		_ = conn.Close() // no listener
		return
	}
	s.mu.Lock()
	s.tries++
	early := s.tries <= 3
	s.open = append(s.open, conn)
	s.mu.Unlock()
	for s.isStopped() { // the guest's driver does not answer
		time.Sleep(time.Millisecond)
	}
	switch {
	case s.fault == "refused" && early: // the guest does not listen yet
		_ = conn.Close()
		return
	case s.fault == "no-agent":
		_ = conn.Close()
		return
	case s.fault == "bad-ok":
		_, _ = conn.Write([]byte(strings.Repeat("x", 100)))
		return
	case s.fault == "bad-echo":
		_, _ = conn.Write([]byte("OK 1\nXXXXXXXXXXXXXXXX"))
		return
	}
	if _, err := fmt.Fprintf(conn, "OK %d\n", 1<<30+s.tries); err != nil {
		return
	}
	if s.fault == "reset" && early { // the guest's kernel handles the reset only now
		time.Sleep(5 * time.Millisecond)
		_ = conn.Close()
		return
	}
	s.guest <- conn
}

func (s *vsock) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// stop sets whether the guest's CPUs are paused.
func (s *vsock) stop(still bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = still
}

// reset closes all connections.
func (s *vsock) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		_ = c.Close()
	}
	s.open = nil
}

// Accept gives the agent its connections.
func (s *vsock) Accept() (io.ReadWriteCloser, error) {
	conn, ok := <-s.guest
	if !ok {
		return nil, errors.New("closed")
	}
	return conn, nil
}

// Close implements machine.Accepter.
func (s *vsock) Close() error { return os.ErrInvalid }
