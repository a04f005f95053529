// Package network defines what a sandbox may reach on the network: the policy and its rules, the
// judge that decides by them, secret headers, and reports of refusals. The packages below it carry
// the traffic: netstack is a sandbox's network, proxy forwards HTTP request by request and
// intercepts TLS, recording records and replays, and sniff classifies first bytes. This package
// imports none of them, so that reading a policy does not link a TCP/IP stack.
package network

import (
	"context"
	"net"
	"net/netip"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// The addresses of every sandbox's network, which no other sandbox is on.
const (
	GuestAddress = "10.0.2.15/24"
	Gateway      = "10.0.2.2"
	DNS          = "10.0.2.3"
)

// MTU is the default MTU of a guest's card, in bytes: Ethernet's.
const MTU = 1500

// LargeMTU is the MTU, in bytes, of cards that the agent creates and whose frames it carries: each
// frame costs it several system calls, and no device between the agent and the host needs small
// frames.
const LargeMTU = 16 << 10

// MaxAnswers bounds the addresses in an answer of the name server.
const MaxAnswers = 24

// A Policy defines what a guest may reach. The zero Policy is the default of "network: on": every
// public address, and nothing else.
type Policy struct {
	// Only refuses everything that Allow does not name; without Only, Allow opens further addresses
	// (private ranges) in addition to the public addresses.
	Only  bool
	Allow []Rule
	Deny  []Rule // overrides Allow
	// Within are further policies that must also allow what this policy allows, such as the host's
	// policy if documents may only narrow it. They may themselves be within policies.
	Within []Policy
	// Own are addresses with a port that are open whatever the other rules and Within say: services
	// of the caller itself. Own of a policy in Within does not count.
	Own []Rule
	// Whose prefixes the reason when this policy refuses, such as "the host's policy".
	Whose string
}

// A Rule names hosts or addresses, with an optional port: "api.example.com", "*.example.org:443",
// "10.0.0.0/8", "192.0.2.1:5432".
type Rule struct {
	// lower case, no final dot; prefix "*.": any name below it; empty: Prefix counts
	Name   string
	Prefix netip.Prefix // valid if Name is empty
	Port   uint16       // 0: all
}

// A Dialer opens the host's side of a connection; network is "tcp" or "udp".
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// A Resolver resolves names to addresses.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// An Interceptor may take over a connection that the policy allows, instead of the host's dialer:
// to record it, to replay it, or to add a credential.
type Interceptor interface {
	// Intercept serves guest until its end and returns true; or returns false at once.
	Intercept(ctx context.Context, guest net.Conn, to Target) bool
}

// A Target is the destination of a guest's connection.
type Target struct {
	Address netip.AddrPort
	// Name is the host that the guest has named (TLS server name, HTTP host, or the name that it
	// had resolved to the address), or empty.
	Name string
	// Request returns why a request for a host, in the form of HTTP's Host, is refused on this
	// connection, or "". If it is not nil, HTTP must be forwarded request by request, because the
	// policy names hosts.
	Request func(host string) string
}

// An Observer receives the network's events. Its methods are called from many goroutines and must
// not block.
type Observer interface {
	// Refused reports a connection or a lookup that the policy, or a limit, ended.
	Refused(turnstone.Refusal)
	// Closed reports a connection that has ended, with its bytes.
	Closed(Connection)
}

// MaxReason bounds the text of a refusal or a failure, in bytes.
const MaxReason = 300

// Shorten cuts the text of a refusal or a failure to at most MaxReason bytes and an ellipsis.
func Shorten(s string) string { return brief.Clip(s, MaxReason) }

// A Connection is a connection that was allowed.
type Connection struct {
	Start, End time.Time
	Protocol   string
	Host       string
	Address    netip.AddrPort
	Sent       int64 // bytes that the guest sent
	Received   int64 // bytes that the guest received
}
