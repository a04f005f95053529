package topcmd

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/terminal"
)

// A Report is what runs: the output of turn top --json.
type Report struct {
	Turns     []TopTurn    `json:"turns"`     // longest first
	Sandboxes []TopSandbox `json:"sandboxes"` // the same
}

// A TopTurn is a turn that runs, or was reserved and waits for its document.
type TopTurn struct {
	ID      string    `json:"id,omitempty"`      // of the turn; absent: it does not run yet
	Ticket  string    `json:"ticket,omitempty"`  // of a turn of a host
	Session string    `json:"session,omitempty"` // its name, or its ID
	Number  int       `json:"number,omitempty"`  // in its session
	State   string    `json:"state"`             // "running" or "reserved"
	Since   time.Time `json:"since"`             // its start, or its reservation
	Node    string    `json:"node,omitempty"`    // of a host
}

// A TopSandbox is a sandbox that has not ended.
type TopSandbox struct {
	ID      string           `json:"id"`
	Name    string           `json:"name,omitempty"`
	Image   string           `json:"image,omitempty"`
	Session string           `json:"session,omitempty"` // that it belongs to
	State   string           `json:"state"`             // "creating", "ready", "running" or "paused"
	Since   time.Time        `json:"since"`             // its creation
	Where   string           `json:"where,omitempty"`   // isolation, and the node of a host
	CPUs    int              `json:"cpus,omitempty"`
	Memory  turnstone.Bytes  `json:"memory_bytes,omitempty"`
	CPUTime turnstone.Millis `json:"cpu_ms,omitempty"`            // of its processes here; absent: unknown
	Used    turnstone.Bytes  `json:"memory_used_bytes,omitempty"` // the same
}

func newReport() *Report { return &Report{Turns: []TopTurn{}, Sandboxes: []TopSandbox{}} }

func (r *Report) sort() {
	slices.SortFunc(r.Turns, func(a, b TopTurn) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Ticket+a.ID, b.Ticket+b.ID))
	})
	slices.SortFunc(r.Sandboxes, func(a, b TopSandbox) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
}

// summary counts what runs.
func (r *Report) summary() string {
	count := map[string]int{}
	for _, t := range r.Turns {
		count["turn "+t.State]++
	}
	for _, s := range r.Sandboxes {
		count[s.State]++
	}
	text := fmt.Sprintf("turns: %d running", count["turn running"])
	if n := count["turn reserved"]; n > 0 {
		text += fmt.Sprintf(", %d reserved", n)
	}
	text += fmt.Sprintf("; sandboxes: %d", len(r.Sandboxes))
	var states []string
	for _, state := range []string{"creating", "ready", "running", "paused"} {
		if n := count[state]; n > 0 {
			states = append(states, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(states) > 0 {
		text += " (" + strings.Join(states, ", ") + ")"
	}
	return text
}

// print prints the report as lines. All names are untrusted: the tables make them printable.
func (r *Report) print(w io.Writer, now time.Time) {
	terminal.Println(w, r.summary())
	if len(r.Turns) > 0 {
		terminal.Println(w)
		terminal.Table(w, "TURN\tSESSION\tSTATE\tAGE\tNODE", r.Turns, func(t TopTurn) []any {
			session := cmp.Or(t.Session, "-")
			if t.Number > 0 && t.Session != "" {
				session = fmt.Sprintf("%s@%d", t.Session, t.Number)
			}
			return []any{cmp.Or(t.ID, t.Ticket), session, t.State, age(t.Since, now), cmp.Or(t.Node, "-")}
		})
	}
	if len(r.Sandboxes) > 0 {
		terminal.Println(w)
		head := "SANDBOX\tNAME\tSTATE\tAGE\tCPUS\tCPU\tMEMORY\tIMAGE\tSESSION\tON"
		terminal.Table(w, head, r.Sandboxes, func(s TopSandbox) []any {
			cpu, memory := "-", s.Memory.Human()
			if s.CPUTime > 0 {
				cpu = terminal.Elapsed(time.Duration(s.CPUTime).Truncate(100 * time.Millisecond))
			}
			if s.Used > 0 {
				memory = s.Used.Human() + " of " + memory
			}
			return []any{s.ID, cmp.Or(s.Name, "-"), s.State, age(s.Since, now), s.CPUs, cpu, memory,
				cmp.Or(s.Image, "-"), cmp.Or(s.Session, "-"), cmp.Or(s.Where, "-")}
		})
	}
}

func age(since, now time.Time) string {
	if since.IsZero() || since.Unix() == 0 {
		return "-"
	}
	return terminal.Rough(max(0, now.Sub(since)))
}

// lines returns what the screen shows.
func (v *view) lines(now time.Time) []string {
	var b bytes.Buffer
	terminal.Println(&b, "turn top, "+now.Format(time.TimeOnly)+"; q quits")
	if v.fault != nil {
		terminal.Println(&b, "not up to date: "+v.fault.Error())
	}
	if v.report == nil {
		terminal.Println(&b, v.title)
	} else {
		v.report.print(&b, now)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}
