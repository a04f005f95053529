package relay

import (
	"fmt"
	"io"
	"net"
	"os"
)

// childVariable makes the test's program a peer that sends and receives: its work is not the
// relay's, and therefore is in another process.
const childVariable = "RELAY_TEST_PEERS"

// runChild is the peers' process: it connects to two addresses, writes to the first without end,
// and discards what comes from the second.
func runChild() {
	var from, to string
	if n, _ := fmt.Sscan(os.Getenv(childVariable), &from, &to); n != 2 {
		return
	}
	var ends [2]net.Conn
	for i, address := range []string{from, to} {
		network := "tcp"
		if address[0] == '/' {
			network = "unix"
		}
		c, err := net.Dial(network, address)
		if err != nil {
			panic(err)
		}
		ends[i] = c
	}
	go func() {
		for p := make([]byte, 64<<10); ; {
			if _, err := ends[0].Write(p); err != nil {
				os.Exit(0)
			}
		}
	}()
	p := make([]byte, 256<<10)
	_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{ends[1]}, p)
	os.Exit(0)
}
