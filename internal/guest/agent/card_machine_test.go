package agent_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/driver/gvisor"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestCardInSandboxes checks that frames of the agent's card go in both directions, under both
// kernels, also after another stream has taken over the card.
func TestCardInSandboxes(t *testing.T) {
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	q, err := qemu.New(t.Context(), h, qemu.Options{Probe: &m})
	check(t, err)
	runsc, err := filepath.Abs("../../../bin/runsc")
	check(t, err)
	g, err := gvisor.New(t.Context(), h, gvisor.Options{Binary: runsc})
	check(t, err)
	for _, s := range []substrate.Substrate{q, g} {
		t.Run(s.Name(), func(t *testing.T) {
			_, client := substratetest.Clone(t, s, m, nil)
			// A sandbox with its own card must behave as if it had none.
			substratetest.Shell(t, client, "ip addr flush dev eth0; ip link set eth0 down")
			for range 2 {
				speak(t, client)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var guestMAC, hostMAC = []byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}, []byte{0x52, 0x54, 0, 0, 0, 1}

// speak makes the sandbox send a datagram to its gateway, and answers as the gateway.
func speak(t *testing.T, client *wire.Client) {
	t.Helper()
	frames, err := client.NetworkStream(t.Context(),
		wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56",
			Network: wire.SandboxNetwork{Address: "10.0.2.15/24", Gateway: "10.0.2.2",
				DNS: []string{"10.0.2.3"}}})
	check(t, err)
	defer func() { _ = frames.Close() }()
	defer time.AfterFunc(time.Minute, func() { _ = frames.Close() }).Stop()
	said := make(chan string, 1)
	go func() {
		out, _ := substratetest.Shell(t, client,
			"exec 3<>/dev/udp/192.0.2.1/9; echo question >&3; timeout 30 head -n 1 <&3; cat "+
				"/etc/resolv.conf")
		said <- out
	}()
	for {
		f := read(t, frames)
		switch {
		case len(f) >= 42 && binary.BigEndian.Uint16(f[12:]) == 0x0806 &&
			bytes.Equal(f[38:42], []byte{10, 0, 2, 2}):
			// an ARP request for the gateway (RFC 826)
			if !bytes.Equal(f[6:12], guestMAC) {
				t.Fatalf("the card's address is %x", f[6:12])
			}
			reply := append(append(append([]byte{}, guestMAC...), hostMAC...), 8, 6, 0, 1, 8,
				0, 6, 4, 0, 2)
			reply = append(append(reply, hostMAC...), 10, 0, 2, 2)
			write(t, frames, append(append(reply, guestMAC...), 10, 0, 2, 15))
		case len(f) >= 42 && bytes.HasSuffix(f, []byte("question\n")):
			write(t, frames, answer(f))
			if out := <-said; out != "the answer\nnameserver 10.0.2.3\n" {
				t.Errorf("the sandbox got %q", out)
			}
			return
		}
	}
}

// answer returns a datagram to the sender of the one in f, without a checksum.
func answer(f []byte) []byte {
	text := "the answer\n"
	ip := bytes.Clone(f[14:34])
	copy(ip[12:16], f[30:34])
	copy(ip[16:20], f[26:30])
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(text)))
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	out := append(append(append(bytes.Clone(guestMAC), hostMAC...), 8, 0), ip...)
	out = append(append(out, f[36:38]...), f[34:36]...)
	out = binary.BigEndian.AppendUint16(out, uint16(8+len(text)))
	return append(append(out, 0, 0), text...)
}

func read(t *testing.T, r io.Reader) []byte {
	t.Helper()
	var head [4]byte
	_, err := io.ReadFull(r, head[:])
	check(t, err)
	f := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err = io.ReadFull(r, f)
	check(t, err)
	return f
}

func write(t *testing.T, w io.Writer, f []byte) {
	t.Helper()
	if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(f))),
		f...)); err != nil {
		t.Fatalf("%s: %v", hex.EncodeToString(f), err)
	}
}
