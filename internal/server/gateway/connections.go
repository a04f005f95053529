package gateway

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connections bounds the connections of callers, in all and of each address. When all are in use,
// the one that has waited longest for a request makes room, so nobody can keep others out with
// connections that do nothing. It does not wrap a connection, because the relay reads a plain
// socket with less memory.
type connections struct {
	most, per int

	mu    sync.Mutex
	ever  uint64 // connections that were counted since the start
	all   map[net.Conn]*connection
	count map[netip.Prefix]int
	idle  *list.List // of net.Conn, the longest first
}

type connection struct {
	from     netip.Prefix // invalid for a unix socket
	hijacked bool
	waits    *list.Element // in idle; nil: a request runs, or none has come yet
}

func newConnections(most, per int) *connections {
	return &connections{most: most, per: per, all: map[net.Conn]*connection{},
		count: map[netip.Prefix]int{}, idle: list.New()}
}

func (c *connections) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// uses returns the connections that are open, and those that were counted since the start.
func (c *connections) uses() (open int, ever uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all), c.ever
}

// add counts a connection, or says why it is one too many. Connections of trusted proxies are many
// callers', so only their sum is bounded.
func (c *connections) add(conn net.Conn, proxies []netip.Prefix) (problem string) {
	one := &connection{}
	if a, ok := addressOf(conn.RemoteAddr().String()); ok && !within(a, proxies) {
		one.from = network(a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.from.IsValid() && c.count[one.from] >= c.per {
		return fmt.Sprintf("the address has %d connections, which is the limit", c.per)
	}
	if len(c.all) >= c.most {
		longest := c.idle.Front()
		if longest == nil {
			return fmt.Sprintf("the server has %d connections, which is its limit", c.most)
		}
		idle := longest.Value.(net.Conn)
		c.forget(idle, c.all[idle])
		_ = idle.Close() // its server notices, and says so once more
	}
	c.all[conn] = one
	c.ever++
	c.count[one.from]++
	return ""
}

// changed is told of states of a server's connections.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	conn = plain(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[conn]
	if one == nil {
		return
	}
	if one.waits != nil {
		c.idle.Remove(one.waits)
		one.waits = nil
	}
	switch state {
	case http.StateIdle:
		one.waits = c.idle.PushBack(conn)
	case http.StateHijacked:
		one.hijacked = true // its handler calls left
	case http.StateClosed:
		c.forget(conn, one)
	}
}

// left says that a channel is done with a connection, if it has taken it over.
func (c *connections) left(conn net.Conn) {
	conn = plain(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[conn]; one != nil && one.hijacked {
		c.forget(conn, one)
	}
}

// forget counts a connection no longer. The caller holds mu.
func (c *connections) forget(conn net.Conn, one *connection) {
	delete(c.all, conn)
	if one.waits != nil {
		c.idle.Remove(one.waits)
	}
	if c.count[one.from]--; c.count[one.from] <= 0 {
		delete(c.count, one.from)
	}
}

// plain returns the socket below TLS.
func plain(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// connectionKey finds a request's connection in its context.
type connectionKey struct{}

type connectionOf struct {
	conn net.Conn
	all  *connections
}

// connectionIn returns the connection of a request; without Serve, there is none.
func connectionIn(ctx context.Context) connectionOf {
	c, _ := ctx.Value(connectionKey{}).(connectionOf)
	return c
}

// leave counts a connection no longer that a channel had.
func (c connectionOf) leave() {
	if c.all != nil {
		c.all.left(c.conn)
	}
}

// Bounds of the farewell of a connection that is one too many.
const (
	farewells    = 32
	farewellTime = 500 * time.Millisecond
)

// A listener accepts connections within the bounds. Others get an answer and are closed.
type listener struct {
	net.Listener
	all     *connections
	often   *rates[netip.Prefix] // of new connections: a handshake costs more than a request
	proxies []netip.Prefix
	secure  bool // no answer fits before the handshake
	slots   chan struct{}
	wg      sync.WaitGroup
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		problem := l.admit(conn)
		if problem == "" {
			return conn, nil
		}
		select {
		case l.slots <- struct{}{}:
			l.wg.Go(func() {
				defer func() { <-l.slots }()
				l.farewell(conn, problem)
			})
		default:
			_ = conn.Close()
		}
	}
}

// admit counts a connection, or says why it is one too many.
func (l *listener) admit(conn net.Conn) (problem string) {
	a, ok := addressOf(conn.RemoteAddr().String())
	if ok && !within(a, l.proxies) && l.often.take(network(a)) > 0 {
		return "the address connects more often than its rate allows"
	}
	return l.all.add(conn, l.proxies)
}

// farewell answers without a look at the request. It reads a little, because a socket that is
// closed with unread bytes is reset, and the answer would be lost.
func (l *listener) farewell(conn net.Conn, problem string) {
	defer func() { _ = conn.Close() }()
	if l.secure {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(farewellTime))
	body := `{"code":"unavailable","message":"` + problem + `"}`
	_, err := fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n"+
		"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
	if c, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, conn, 16<<10)
	}
}
