package turnstone

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Refusal is an action of the guest that was refused.
type Refusal struct {
	At       time.Time
	Protocol string // "tcp", "udp", "dns", "icmp"
	Host     string // the name, if it is known
	Address  netip.AddrPort
	Reason   string // a single line, such as "not in allow", "private address"
}

// A SecretHeader is a header that is added to outgoing requests to a host. The guest never has its
// value.
type SecretHeader struct {
	Scheme string `json:"scheme"` // "https", or "http" if the user wrote so
	Host   string `json:"host"`   // a name or an address; lower case
	Port   uint16 `json:"port"`   // 0: every port
	Name   string `json:"name"`   // such as "Authorization"
	Value  string `json:"value"`
}

// Label returns the header's name without its value, such as
// "https://api.example.com=Authorization".
func (h SecretHeader) Label() string {
	where := h.Scheme + "://" + h.Host
	if h.Port != 0 {
		where += fmt.Sprintf(":%d", h.Port)
	}
	return where + "=" + h.Name
}

// String implements fmt.Stringer without the value, also for callers that print the struct.
func (h SecretHeader) String() string { return h.Label() }

// GoString is String for %#v.
func (h SecretHeader) GoString() string { return h.Label() }

// A NetworkSpec is a request for a sandbox's network, in a form that can be stored.
type NetworkSpec struct {
	// Allow and Deny are rules such as "*.example.com:443" and "10.0.0.0/8". The word "public" in
	// Allow stands for all public addresses.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	Only  bool     `json:"only,omitempty"` // refuse everything that Allow does not name
	Open  bool     `json:"open,omitempty"` // TLS is intercepted
	// Asked means that only a document requests Allow, which then opens no more than public
	// addresses and the host's grants to documents.
	Asked bool `json:"asked,omitempty"`
	// Headers are secret headers. Their values are not stored.
	Headers []SecretHeader `json:"headers,omitempty"`
	// NoHostCA means that the sandbox does not trust the host's additional authorities.
	NoHostCA bool   `json:"no_host_ca,omitempty"`
	DNS      string `json:"dns,omitempty"` // ADDRESS:PORT of the name server; empty: the host's
}

// Bare returns s without the values of secrets.
func (s *NetworkSpec) Bare() *NetworkSpec {
	if s == nil {
		return nil
	}
	bare := *s
	bare.Headers = slices.Clone(s.Headers)
	for i := range bare.Headers {
		bare.Headers[i].Value = ""
	}
	return &bare
}

// Same reports whether both are equal except for the values of secrets.
func (s *NetworkSpec) Same(o *NetworkSpec) bool {
	if s == nil || o == nil {
		s, o = cmp.Or(s, &NetworkSpec{}), cmp.Or(o, &NetworkSpec{})
	}
	return slices.Equal(s.Allow, o.Allow) && slices.Equal(s.Deny, o.Deny) && s.Only == o.Only &&
		s.Open == o.Open && s.Asked == o.Asked && s.NoHostCA == o.NoHostCA &&
		s.DNS == o.DNS &&
		slices.EqualFunc(s.Headers, o.Headers,
			func(a, b SecretHeader) bool { return a.Label() == b.Label() })
}

// A Refused is a Refusal that happened Count times since At.
type Refused struct {
	Refusal
	Count int64
	Last  time.Time
}

// NetworkFacts are the events of a sandbox's network: the totals since its creation, and the
// refusals since the last report.
type NetworkFacts struct {
	Totals  NetworkTotals `json:"totals"`
	Refused []Refused     `json:"refused,omitempty"`
	More    int64         `json:"more,omitempty"` // refusals that are not in Refused
	// Ended are connections that ended since the last report, as far as they were collected.
	Ended []ConnectionReport `json:"ended,omitempty"`
}

// Cut keeps at most n refusals, and counts the others. It keeps at most n ended connections.
func (f *NetworkFacts) Cut(n int) {
	f.Ended = f.Ended[:min(n, len(f.Ended))]
	for len(f.Refused) > n {
		last := len(f.Refused) - 1
		f.More += f.Refused[last].Count
		f.Refused = f.Refused[:last]
	}
}

// NetworkTotals are counters of a sandbox's network since its creation. They only grow.
type NetworkTotals struct {
	Connections int64 // TCP connections and UDP flows that were allowed and opened
	Sent        int64 // bytes that the guest sent on them
	Received    int64 // bytes that the guest received on them
	Lookups     int64 // lookups of the host
	Refused     int64 // connections, lookups and packets that the policy or a limit ended
	Dropped     int64 // invalid frames of the guest, and frames without space in the queue
	Untold      int64 // refusals that no observer received: of limits, and beyond its rate
}
