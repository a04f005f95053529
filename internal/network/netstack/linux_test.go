package netstack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

// inLinux runs the function what in a new network namespace whose only card is on s, so that a real
// kernel is the guest. It needs root.
func inLinux(t *testing.T, s *Stack, what func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			tap, err := tapDevice()
			if err != nil {
				return err
			}
			defer tap.Close()
			ours, theirs := networktest.SocketPair(t)
			defer theirs.Close()
			go func() { _ = s.Serve(context.Background(), ours) }()
			go func() {
				for buf := make([]byte, 4+2048); ; {
					n, err := tap.Read(buf[4:])
					if err != nil {
						return
					}
					binary.BigEndian.PutUint32(buf, uint32(n))
					if _, err := theirs.Write(buf[:4+n]); err != nil {
						return
					}
				}
			}()
			go func() {
				for {
					f, err := readFrame(theirs)
					if err != nil {
						return
					}
					_, _ = tap.Write(f)
				}
			}()
			what()
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Skip("no TAP device in a network namespace here:", err)
	}
}

// tapDevice creates the card, like a guest's.
func tapDevice() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq("tap0")
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	link, err := netlink.LinkByName("tap0")
	if err != nil {
		return nil, err
	}
	addr, err := netlink.ParseAddr(network.GuestAddress)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap"), errors.Join(netlink.LinkSetMTU(link, network.MTU),
		netlink.AddrAdd(link, addr), netlink.LinkSetUp(link),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Gw: net.ParseIP(network.Gateway)}))
}

func TestLinuxAsTheGuest(t *testing.T) {
	host := networktest.NewHost(t)
	log := &journal{}
	s, err := New(Options{Dialer: host, Resolver: host, Observer: log,
		Policy: network.Policy{Deny: networktest.Rules(t, "bad.example")}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const size = 16 << 20
	data := make([]byte, size)
	_, _ = rand.Read(data)
	host.Listen("198.51.100.1:80", func(c net.Conn) {
		defer c.Close()
		got, _ := io.ReadAll(c)
		_, _ = c.Write(got)
	})
	host.Listen("198.51.100.1:9", udpEcho)
	host.Name("good.example", "198.51.100.1")
	inLinux(t, s, func() {
		start := time.Now()
		c, err := net.DialTimeout("tcp4", "198.51.100.1:80", 2*time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		t.Logf("connected in %s", time.Since(start))
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		start = time.Now()
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
		t.Logf("16 MiB there and back in %s", time.Since(start))
		_ = c.Close()

		for to, want := range map[string]error{"198.51.100.1:81": syscall.ECONNREFUSED,
			"192.168.1.1:80": syscall.ECONNREFUSED,
			"10.0.2.2:80":    syscall.ECONNREFUSED} {
			if _, err := net.DialTimeout("tcp4", to, 2*time.Minute); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", to, err, want)
			}
		}
		host.Mu.Lock()
		host.Fails["198.51.100.2:80"] = &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}
		host.Mu.Unlock()
		if _, err := net.DialTimeout("tcp4", "198.51.100.2:80", 2*time.Minute); !errors.Is(err,
			syscall.EHOSTUNREACH) {
			t.Errorf("without a route: %v", err)
		}
		for to, want := range map[string]error{"198.51.100.1:9": nil,
			"192.168.1.1:9": syscall.ECONNREFUSED} {
			u, err := net.Dial("udp4", to)
			if err != nil {
				t.Error(err)
				return
			}
			_ = u.SetDeadline(time.Now().Add(2 * time.Minute))
			_, _ = u.Write(make([]byte, 9000)) // in fragments
			if n, err := u.Read(make([]byte, 65535)); !errors.Is(err, want) || want == nil &&
				n != 9000 {
				t.Errorf("udp %s: %d, %v", to, n, err)
			}
			_ = u.Close()
		}
		u, err := net.Dial("udp4", network.DNS+":53")
		if err != nil {
			t.Error(err)
			return
		}
		defer u.Close()
		_ = u.SetDeadline(time.Now().Add(2 * time.Minute))
		for name, want := range map[string]int{"good.example": 1, "bad.example": 0} {
			_, _ = u.Write(question(t, name, 1, true))
			buf := make([]byte, 1232)
			n, err := u.Read(buf)
			if err != nil {
				t.Error(err)
				return
			}
			if m := parse(t, buf[:n]); len(m.Answers) != want {
				t.Errorf("%s: %+v", name, m)
			}
		}
	})
	if tot := s.Totals(); tot.Sent < size || tot.Received < size {
		t.Errorf("%+v", tot)
	}
}
