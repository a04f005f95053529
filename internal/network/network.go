// Package network says what a sandbox may reach on the network: the policy and its rules, the
// judge that decides by them, secret headers, and reports of what was refused. What carries
// traffic is below it: netstack is a sandbox's network, proxy passes HTTP on request by request
// and opens TLS, recording keeps and replays, and sniff classifies first bytes. This package
// imports none of them, so that reading a policy does not link a TCP/IP stack.
package network

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// The addresses of every sandbox's network, which no other sandbox is on.
const (
	GuestAddress = "10.0.2.15/24"
	Gateway      = "10.0.2.2"
	DNS          = "10.0.2.3"
)

// MTU of a guest's card, in bytes, where Options say nothing else: Ethernet's.
const MTU = 1500

// LargeMTU is for cards that the agent makes and whose frames it carries: each frame
// costs it several system calls, and nothing between it and the host wants small ones.
const LargeMTU = 16 << 10

// MaxAnswers bounds the addresses in one answer of the name server.
const MaxAnswers = 24

// A Policy says what a guest may reach. The zero Policy is the default of
// "network: on": every public address, and nothing else.
type Policy struct {
	// Only says that what Allow does not name is refused; else Allow opens further
	// addresses (private ranges) beside the public ones.
	Only  bool
	Allow []Rule
	Deny  []Rule // wins over Allow
	// Within are further policies that have to allow what this one allows, such as the host's
	// when documents may only narrow it. They may have policies that they are within, too.
	Within []Policy
	// Own are addresses with a port that are open whatever the other rules and Within say:
	// services of the caller itself. Own of a policy in Within does not count.
	Own []Rule
	// Whose is put in front of the reason when this policy refuses, such as "the host's policy".
	Whose string
}

// A Rule names hosts or addresses, and maybe one port: "api.example.com",
// "*.example.org:443", "10.0.0.0/8", "192.0.2.1:5432".
type Rule struct {
	Name   string       // lower case, without a final dot; "*." first: any name below it; empty: Prefix counts
	Prefix netip.Prefix // valid when Name is empty
	Port   uint16       // 0: all
}

// A Dialer opens the host's side of a connection; network is "tcp" or "udp".
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// A Resolver answers names with addresses.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// An Interceptor may take a connection that the policy allows away from the host's
// dialer: to record it, to replay it, or to put a credential into what is sent.
type Interceptor interface {
	// Intercept serves guest until its end and reports true; or reports false at once.
	Intercept(ctx context.Context, guest net.Conn, to Target) bool
}

// A Target is what a connection of the guest goes to.
type Target struct {
	Address netip.AddrPort
	// Name is the host that the guest said it wants (TLS server name, HTTP host, or the name
	// it had resolved the address from), or empty.
	Name string
	// Request returns why a request for a host, as HTTP's Host has it, may not go over the
	// connection, or "". When it is not nil, what is HTTP has to be passed on request by
	// request, because the policy names hosts.
	Request func(host string) string
}

// An Observer is told what happens on the network. Its methods are called from many
// goroutines and must not block.
type Observer interface {
	// Refused tells of a connection or a lookup that the policy, or a limit, ended.
	Refused(Refusal)
	// Closed tells of a connection that has ended, with its bytes.
	Closed(Connection)
}

// A Refusal is something that a guest was not let do.
type Refusal struct {
	At       time.Time
	Protocol string // "tcp", "udp", "dns", "icmp"
	Host     string // the name, where one is known
	Address  netip.AddrPort
	Reason   string // one line, as "not in allow", "private address"
}

// MaxReason bounds the text of a refusal or a failure, in bytes.
const MaxReason = 300

// Shorten cuts the text of a refusal or a failure to at most MaxReason bytes and an ellipsis.
func Shorten(s string) string {
	if len(s) > MaxReason {
		return s[:MaxReason] + "…"
	}
	return s
}

// A Connection is one that was allowed.
type Connection struct {
	Start, End time.Time
	Protocol   string
	Host       string
	Address    netip.AddrPort
	Sent       int64 // bytes that the guest sent
	Received   int64 // bytes that the guest got
}
