package hostcmd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/terminal"
)

// A finding is the result of a check of a host, with the JSON of doctor.Finding.
type finding struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, warn or fail
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // a sentence: what to do is rarely a command
}

// A doctorReport is the output of turn doctor about a host.
type doctorReport struct {
	Usable   bool             `json:"usable"`
	Findings []finding        `json:"findings"`
	Tiers    []turnstone.Tier `json:"tiers"` // none: they are of this machine
}

// Bounds of what is no finding.
const (
	soon     = time.Hour        // a token that ends within it gets a warning
	wideness = 20 * time.Second // of clocks: statements of nodes are valid for a short time
)

// Doctor checks the host that commands use, and prints the findings. It reports false for this
// machine, also for its own server: what this machine can run is what counts then. A check that is
// about this machine alone is refused on a host.
func Doctor(a *cli.App, localOnly string) (bool, error) {
	name, err := a.CurrentHost()
	if err != nil || name == hosts.Local || name == hosts.Auto {
		return err != nil, err
	}
	return true, a.Do(func(ctx context.Context) error {
		if localOnly != "" {
			return turnstone.Errorf("doctor", turnstone.KindInvalid, localOnly,
				"is about this machine, and the host %s is selected", name).
				WithHint("select this machine with TURN_HOST=local")
		}
		s, err := a.Server(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		report := doctorReport{Findings: examine(ctx, s), Usable: true, Tiers: []turnstone.Tier{}}
		for _, f := range report.Findings {
			report.Usable = report.Usable && f.Status != "fail"
		}
		err = a.Result(report, nil, func(w io.Writer) {
			var rows [][]any
			for _, f := range report.Findings {
				if rows = append(rows, []any{f.Status, f.Name, f.Detail}); f.Fix != "" {
					rows = append(rows, []any{"", "", "fix: " + f.Fix})
				}
			}
			terminal.Table(w, "", rows, func(row []any) []any { return row })
		})
		if err == nil && !report.Usable {
			err = cli.Exit(cli.ExitFailed, nil)
		}
		return err
	})
}

// failing returns the finding of an error.
func failing(name string, err error) finding {
	return finding{name, "fail", err.Error(), turnstone.HintOf(err)}
}

// examine checks a host, from its address to its nodes.
func examine(ctx context.Context, s *remote.Server) []finding {
	all := []finding{tokenFinding(s, time.Now())}
	answer, err := s.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	if turnstone.KindOf(err) == turnstone.KindDenied && all[0].Status == "ok" {
		// it answered; without the right to list nodes, one of them is known
		all = append(all, finding{"server", "ok", s.Address().String() + " answers", ""})
		return append(all, nodeFinding(ctx, s, &v1.Node{}))
	}
	if err != nil {
		return append(all, failing("server", err))
	}
	all = append(all, finding{"server", "ok", s.Address().String() + " answers", ""},
		clockFinding(answer.Header(), time.Now()))
	if len(answer.Msg.Nodes) == 0 {
		all = append(all, finding{"nodes", "fail", "none is there",
			"start one with turn serve --role node, or wait until it is back"})
	}
	for _, n := range answer.Msg.Nodes {
		all = append(all, nodeFinding(ctx, s, n))
	}
	for _, l := range answer.Msg.Lost {
		all = append(all, finding{"node " + l.GetNode().GetName(), "warn", "has not answered since " +
			l.Since.AsTime().UTC().Format(time.RFC3339),
			"start it again, or forget it with turn node rm if it does not come back"})
	}
	return all
}

// tokenFinding says what the token says. Whether the server accepts it, the first call shows.
func tokenFinding(s *remote.Server, now time.Time) finding {
	c, has, err := s.Claims()
	left := c.Expires.Sub(now).Round(time.Second)
	const another = "make one with turn token create on the server, and store it with turn host add " +
		"--token-file"
	switch {
	case err != nil:
		return failing("token", err)
	case s.Operator():
		return finding{"token", "ok", "none is needed over a socket of this user", ""}
	case !has:
		return finding{"token", "warn", "there is none, or it has no readable claims", another}
	case !c.Expires.IsZero() && left <= 0:
		return finding{"token", "fail", fmt.Sprintf("ended %s ago", -left), another}
	}
	f := finding{"token", "ok", "grants " + strings.Join(c.Scopes, " "), ""}
	if !c.Expires.IsZero() {
		f.Detail = fmt.Sprintf("ends in %s; %s", left, f.Detail)
		if left < soon {
			f.Status, f.Fix = "warn", another
		}
	}
	return f
}

// clockFinding compares the clocks: statements of nodes are valid for a short time.
func clockFinding(h http.Header, now time.Time) finding {
	there, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return finding{"clock", "warn", "the server does not say its time", ""}
	}
	off := now.Sub(there).Round(time.Second)
	if off.Abs() > wideness {
		return finding{"clock", "fail", fmt.Sprintf("this machine and the server differ by %s",
			off.Abs()), "set the clock that is wrong: date -u"}
	}
	return finding{"clock", "ok", "agrees with the server's", ""}
}

// nodeFinding opens a channel to a node, which shows that its key is trusted, that its statement is
// valid at this machine's time, and that nobody between can read the channel.
func nodeFinding(ctx context.Context, s *remote.Server, n *v1.Node) finding {
	name := strings.TrimSpace("node " + n.Name)
	if n.Name != "" && turnstone.CheckName("node", n.Name) != nil {
		return finding{"node", "fail", "the server names a node that cannot be",
			"check the server's address"}
	}
	stream, err := s.NodeChannel(ctx, n.Name)
	if err != nil {
		return failing(name, err)
	}
	_ = stream.Close()
	f := finding{name, "ok", "its key is trusted, and its channel opens", ""}
	if n.Version != "" && n.Version != turnstone.Version {
		f.Status, f.Detail = "warn", fmt.Sprintf("%s; it has version %.40q, and this client %s",
			f.Detail, n.Version, turnstone.Version)
		f.Fix = "use the same version on both sides"
	}
	if n.StoreAway != "" {
		f.Status, f.Detail = "warn", fmt.Sprintf("%s; it takes no turns, because its bucket cannot be used: %.200q",
			f.Detail, n.StoreAway)
		f.Fix = "check node.store and the AWS_* variables of the node, whose log has the error"
	}
	return f
}
