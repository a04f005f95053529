package machine

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/wire"
)

const (
	cardName  = "eth0"   // unless the machine already has a card of this name
	otherCard = "eth%d"  // the kernel assigns the number
	frameHead = 4        // bytes before each frame: its length, big-endian
	etherHead = 14 + 4   // bytes of a frame beside its packet, with a VLAN tag
	maxFrames = 64 << 10 // bytes of frames that are sent together
)

// A card is a TAP device, whose frames the agent carries to the host and back.
type card struct {
	// passing marks a device that cannot survive a snapshot: gVisor saves no such device. The next
	// Connect then creates another device; to open sockets, the first card was removed.
	passing bool

	mu   sync.Mutex
	tap  *os.File // nil: there is none
	name string
	as   string // its current configuration
	stop func() // ends the carrying, and waits for its end; nil: nothing is carried
}

// Connect creates the device, or reuses an existing one, and carries its frames until one of the
// streams ends, or Connect is called again.
func (c *card) Connect(mac net.HardwareAddr, mtu int, n *wire.SandboxNetwork, in io.ReadCloser,
	out agent.FrameSender) (name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
	as := fmt.Sprint(mac, mtu, n.Address, n.Gateway)
	if c.tap != nil && (c.as != as || !linkExists(c.name)) {
		_ = c.tap.Close() // which removes the device
		c.tap = nil
	}
	if c.tap == nil {
		if c.tap, c.name, err = openTAP(); err != nil {
			c.tap = nil
			if lack := runningKernel.lacksAny("inet", "tun"); lack != nil {
				err = lack
			}
			return "", cardError(err)
		}
		if err := setCard(c.name, mac, mtu); err != nil {
			err = errors.Join(cardError(err), c.tap.Close())
			c.tap = nil
			return "", err
		}
		c.as = as
	}
	if err := addressUp(c.name, n); err != nil {
		return "", err
	}
	if err := overwrite("/etc/resolv.conf", resolvConf(n)); err != nil {
		return "", cardError(err)
	}
	c.stop = carry(c.tap, mtu, in, out)
	return c.name, nil
}

// Suspend prepares for a snapshot, when no process runs. The streams end with their connection.
func (c *card) Suspend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
	if c.passing && c.tap != nil {
		_ = c.tap.Close()
		c.tap = nil
	}
}

func cardError(err error) error {
	return turnstone.NewError(wire.MethodSandboxNetwork, turnstone.KindUnavailable, "network card",
		err).
		WithHint("run with network: off, or report this")
}

func linkExists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// openTAP creates the device (the kernel's Documentation/networking/tuntap.rst). Closing the file
// removes the device.
func openTAP() (tap *os.File, name string, err error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	name = cardName
	if linkExists(name) {
		name = otherCard
	}
	var req struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:len(req.name)-1], name)
	req.flags = unix.IFF_TAP | unix.IFF_NO_PI
	if err := ioctl(fd, unix.TUNSETIFF, unsafe.Pointer(&req)); err != nil {
		_ = unix.Close(fd)
		return nil, "", os.NewSyscallError("TUNSETIFF", err)
	}
	name = unix.ByteSliceToString(req.name[:])
	// Only now: the poller rejects a device that was registered earlier.
	return os.NewFile(uintptr(fd), name), name, nil
}

// setCard configures the device's address and size.
func setCard(name string, mac net.HardwareAddr, mtu int) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if err := h.LinkSetHardwareAddr(link, mac); err != nil {
		return err
	}
	return h.LinkSetMTU(link, mtu)
}

// carry copies frames in both directions until one of the streams ends. stop ends the copying and
// returns when the device, which stays, is no longer in use.
func carry(tap *os.File, mtu int, in io.ReadCloser, out agent.FrameSender) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		sendFrames(tap, mtu, out)
		cancel()
	})
	both.Go(func() {
		_ = receiveFrames(tap, mtu, in)
		cancel()
	})
	go func() {
		defer close(done)
		<-ctx.Done()
		_ = tap.SetReadDeadline(time.Unix(1, 0))
		_ = in.Close()
		out.Abort(nil)
		both.Wait()
		_ = tap.SetReadDeadline(time.Time{})
	}()
	return func() {
		cancel()
		<-done
	}
}

// sendFrames sends the sandbox's frames. While the host reads nothing, the device's queue fills,
// and drops further frames.
func sendFrames(tap *os.File, mtu int, out io.Writer) {
	raw, err := tap.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, maxFrames)
	room := frameHead + mtu + etherHead
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			for len(buf)-n >= room {
				k, err := unix.Read(int(fd), buf[n+frameHead:n+room])
				if err == unix.EINTR {
					continue
				}
				if err != nil || k <= 0 {
					return n > 0 || err != unix.EAGAIN
				}
				binary.BigEndian.PutUint32(buf[n:], uint32(k))
				n += frameHead + k
			}
			return true
		})
		if err != nil {
			return
		}
		if n == 0 { // the device is down, or broken
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if _, err := out.Write(buf[:n]); err != nil {
			return
		}
	}
}

// receiveFrames delivers the host's frames to the sandbox. A frame that the device rejects is lost;
// an oversized frame ends the carrying.
func receiveFrames(tap *os.File, mtu int, in io.Reader) error {
	raw, err := tap.SyscallConn()
	if err != nil {
		return err
	}
	r := bufio.NewReaderSize(in, maxFrames)
	var head [frameHead]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(head[:]))
		if n > mtu+etherHead {
			return errors.New("a frame is too long")
		}
		if n == 0 {
			continue
		}
		frame, err := r.Peek(n)
		if err != nil {
			return err
		}
		err = raw.Control(func(fd uintptr) { _, _ = syscall.Write(int(fd), frame) })
		if err != nil {
			return err
		}
		_, _ = r.Discard(n)
	}
}
