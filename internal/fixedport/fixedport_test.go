package fixedport_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone/internal/fixedport"
)

// TestListen: a port is of the range, and may be had again when its listener is closed.
func TestListen(t *testing.T) {
	l, err := fixedport.Listen(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	if at.Port < fixedport.First || at.Port >= fixedport.End || !at.IP.IsLoopback() {
		t.Fatal(at)
	}
	if _, err := net.Listen("tcp", at.String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("two listeners at one port: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	free, err := fixedport.Free(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{at.String(), free} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}

// TestOtherErrors: an address of another machine is an error at once, not one of ports.
func TestOtherErrors(t *testing.T) {
	if _, err := fixedport.Listen(t.Context(), "192.0.2.1"); err == nil ||
		errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "no port") {
		t.Fatal(err)
	}
}

// TestBelowEphemeral: nothing gets one of the ports by chance, unless the machine's settings were changed.
func TestBelowEphemeral(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil || !strings.HasPrefix(string(b), "32768\t") {
		t.Skip("the machine has another ephemeral range, or does not say it")
	}
	if fixedport.End > 32768 {
		t.Fatal("the ranges overlap")
	}
}
