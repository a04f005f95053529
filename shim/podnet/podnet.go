// Package podnet connects a sandbox's network card to the network that a pod has: to the interface
// that the CNI plug-ins have put into the pod's network namespace. Frames are redirected between
// that interface and a TAP device (tc-mirred(8)), so the kernel segments them and completes their
// checksums, and the namespace's own network stack never sees them.
package podnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Network is a pod's network.
type Network struct {
	MAC     string
	MTU     int
	Address string // in CIDR form
	Gateway string

	tap *os.File
	ns  int
}

// tapName is the name of the TAP device in the pod's namespace.
const tapName = "turnstone0"

// Open takes over the interface of the network namespace at path. A namespace without an interface
// beside the loopback returns nil. Close ends it.
func Open(path string) (*Network, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	n := &Network{ns: fd}
	found := false
	err = n.Within(func() (err error) {
		found, err = n.connect()
		return err
	})
	if err != nil || !found {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// Within calls f in the network namespace, on a thread that ends with it.
func (n *Network) Within(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(n.ns, unix.CLONE_NEWNET); err != nil {
			done <- os.NewSyscallError("setns", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// connect finds the pod's interface and redirects its frames.
func (n *Network) connect() (bool, error) {
	link, err := n.find()
	if link == nil || err != nil {
		return false, err
	}
	tap, err := openTap(n.MTU)
	if err != nil {
		return false, fmt.Errorf("TAP device: %w", err)
	}
	n.tap = tap
	other, err := netlink.LinkByName(tapName)
	if err != nil {
		return false, err
	}
	if err := netlink.LinkSetUp(other); err != nil {
		return false, err
	}
	if err := redirect(link, other); err != nil {
		return false, fmt.Errorf("redirecting %s: %w", link.Attrs().Name, err)
	}
	if err := redirect(other, link); err != nil {
		return false, fmt.Errorf("redirecting %s: %w", tapName, err)
	}
	return true, nil
}

// find returns the pod's interface: the first beside the loopback with an IPv4 address.
func (n *Network) find() (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		a := link.Attrs()
		if a.Flags&net.FlagLoopback != 0 || len(a.HardwareAddr) != 6 {
			continue
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return nil, err
		}
		if len(addrs) == 0 {
			continue
		}
		n.MAC, n.MTU, n.Address = a.HardwareAddr.String(), a.MTU, addrs[0].IPNet.String()
		return link, n.route(link, addrs[0].IPNet)
	}
	return nil, nil
}

// route finds the gateway of link's default route.
func (n *Network) route(link netlink.Link, subnet *net.IPNet) error {
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
			n.Gateway = r.Gw.String()
			if !subnet.Contains(r.Gw) {
				return fmt.Errorf("the gateway %s is outside of the pod's subnet %s", r.Gw, subnet)
			}
			return nil
		}
	}
	// no way out of the subnet: an address of it that nobody has to answer at
	first := subnet.IP.Mask(subnet.Mask).To4()
	gw := make(net.IP, 4)
	binary.BigEndian.PutUint32(gw, binary.BigEndian.Uint32(first)+1)
	n.Gateway = gw.String()
	return nil
}

func openTap(mtu int) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(tapName)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	tap := os.NewFile(uintptr(fd), "tap")
	link, err := netlink.LinkByName(tapName)
	if err == nil {
		err = netlink.LinkSetMTU(link, mtu)
	}
	if err != nil {
		_ = tap.Close()
		return nil, err
	}
	return tap, nil
}

// redirect sends what comes in at from out at to.
func redirect(from, to netlink.Link) error {
	in := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from.Attrs().Index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := netlink.QdiscAdd(in); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	const allProtocols = unix.ETH_P_ALL
	return netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index,
			Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: allProtocols},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index}},
	})
}

// maxFrame bounds a frame in bytes; a card's MTU is less.
const maxFrame = 64 << 10

// Carry carries frames between the card and the pod's interface until one of them ends. The frames
// of the card have their length in four bytes before them, and are untrusted: see
// substrate.Networker.
func (n *Network) Carry(ctx context.Context, frames io.ReadWriteCloser) error {
	defer context.AfterFunc(ctx, func() { _ = frames.Close() })()
	var out sync.WaitGroup
	out.Go(func() {
		n.toGuest(frames)
		_ = frames.Close()
	})
	err := n.fromGuest(frames)
	_ = frames.Close()
	_ = n.tap.Close() // ends toGuest
	out.Wait()
	return err
}

func (n *Network) toGuest(frames io.Writer) {
	buf := make([]byte, 4+maxFrame)
	for {
		got, err := n.tap.Read(buf[4:])
		if err != nil {
			return
		}
		binary.BigEndian.PutUint32(buf, uint32(got))
		if _, err := frames.Write(buf[:4+got]); err != nil {
			return
		}
	}
}

func (n *Network) fromGuest(frames io.Reader) error {
	buf := make([]byte, maxFrame)
	for {
		frame, err := readFrame(frames, buf)
		if err != nil {
			return err
		}
		// a frame that the device rejects is lost, as on any network
		if _, err := n.tap.Write(frame); errors.Is(err, os.ErrClosed) {
			return err
		}
	}
}

// readFrame reads a frame into buf.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > uint32(len(buf)) {
		return nil, fmt.Errorf("the guest sent a frame of %d bytes", size)
	}
	_, err := io.ReadFull(r, buf[:size])
	return buf[:size], err
}

// Close ends the network. Carry ends.
func (n *Network) Close() error {
	if n.tap != nil {
		_ = n.tap.Close()
	}
	return unix.Close(n.ns)
}
