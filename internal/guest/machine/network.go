package machine

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// loopbackUp enables the guest's loopback, which every sandbox has.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// networkUp configures the machine's one network card. If the kernel lacks a feature, the error
// names it.
func networkUp(n *wire.SandboxNetwork) error {
	name, err := firstInterface("/sys/class/net")
	if err == nil {
		err = addressUp(name, n)
	}
	if err == nil {
		return nil
	}
	failure := turnstone.NewError("sandbox.network", turnstone.KindUnavailable, n.Address, err).
		WithHint("run with network: off, or report this")
	if lack := runningKernel.lacksAny("inet", "virtio-net"); lack != nil {
		failure.Err, failure.Hint = lack, "run with network: off"
	}
	return failure
}

// addressUp configures a network card: address and state come before the route, which needs both.
func addressUp(name string, n *wire.SandboxNetwork) error {
	fail := func(err error) error {
		return turnstone.NewError("sandbox.network", turnstone.KindUnavailable, n.Address, err).
			WithHint("run with network: off, or report this")
	}
	ip, ipnet, err := net.ParseCIDR(n.Address)
	if err != nil {
		return fail(err)
	}
	gw := net.ParseIP(n.Gateway)
	if gw == nil {
		return fail(errors.New("malformed gateway address"))
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE) // one socket for all requests
	if err != nil {
		return fail(err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fail(err)
	}
	ipnet.IP = ip
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipnet}); err != nil &&
		!errors.Is(err, unix.EEXIST) {
		return fail(err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fail(err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw}
	if err := h.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return fail(err)
	}
	return nil
}

// firstInterface names the network card: the only interface below dir, such as /sys/class/net, that
// has a device. Kernels have others from the start, such as dummy0, sit0 and tunl0.
func firstInterface(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(dir, e.Name(), "device")); err == nil {
			return e.Name(), nil
		}
	}
	return "", errors.New("the machine has no network card")
}

func sameNetwork(a, b *wire.SandboxNetwork) bool {
	return b != nil && a.Address == b.Address && a.Gateway == b.Gateway
}

// resolvConf returns the content of /etc/resolv.conf.
func resolvConf(n *wire.SandboxNetwork) string {
	var b strings.Builder
	if n != nil {
		for _, ip := range n.DNS {
			if net.ParseIP(ip) != nil {
				b.WriteString("nameserver " + ip + "\n")
			}
		}
	}
	return b.String()
}
