package sandboxes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// Info describes a sandbox: the content of its state.json, with the state that its holder reports.
type Info struct {
	ID       turnstone.SandboxID `json:"id"`
	Name     string              `json:"name,omitempty"`  // unique among running sandboxes
	Label    string              `json:"label,omitempty"` // the sandbox's purpose, if given
	State    State               `json:"state"`
	Reason   string              `json:"reason,omitempty"` // why the sandbox is stopped or failed
	End      End                 `json:"end,omitempty"`    // the same, as one of a few values
	Image    string              `json:"image"`
	Template turnstone.Digest    `json:"template,omitempty"`
	// Root is the template's image of a resumed machine and its forks; empty: the template's
	// current image.
	Root         turnstone.Digest       `json:"root,omitempty"`
	TemplateSize turnstone.Bytes        `json:"template_size,omitempty"` // of the template's image
	Substrate    string                 `json:"substrate,omitempty"`
	Isolation    string                 `json:"isolation,omitempty"`
	Workdir      string                 `json:"workdir,omitempty"` // working directory of commands
	User         string                 `json:"user,omitempty"`    // user of commands; empty: root
	Shape        turnstone.Shape        `json:"shape"`
	Network      *turnstone.NetworkSpec `json:"network,omitempty"` // without the values of secret headers
	Created      time.Time              `json:"created"`
	Changed      time.Time              `json:"changed"`          // time of the last change of State
	Expires      *time.Time             `json:"expires,omitzero"` // nil: never
	Paused       bool                   `json:"paused,omitempty"` // the machine is paused
	Holder       Process                `json:"holder"`
	Version      string                 `json:"version,omitempty"`    // of its holder; empty: unknown
	ManagedBy    string                 `json:"managed_by,omitempty"` // at a server; empty: nothing manages it
	NodeLost     *time.Time             `json:"node_lost,omitzero"`   // when its node at a server answered last, if it does not
	Secrets      []string               `json:"secrets,omitempty"`    // names of those in the processes' environment
	// Session is the session that the sandbox belongs to; nil: none.
	Session *SessionInfo        `json:"session,omitempty"`
	DataOf  string              `json:"data_of,omitempty"` // the session whose data the machine has
	Parent  turnstone.SandboxID `json:"parent,omitempty"`  // the sandbox's origin, if it is a fork
	// Used is what the machine has used, as it was measured last: each minute, and at the end.
	Used turnstone.Used `json:"used,omitzero"`
}

// Title returns the sandbox's display name: its name, or its template's name.
func (i Info) Title() string {
	if i.Name != "" {
		return i.Name
	}
	return i.Image
}

// apply moves i to its next state. reason is kept for final states.
func (i *Info) apply(e event, reason string) error {
	next, err := i.State.after(e)
	if err != nil {
		return err
	}
	i.State, i.Changed = next, time.Now().UTC()
	if next.Final() {
		i.Reason, i.End, i.Paused = reason, End(e), false
	}
	return nil
}

// Files in a sandbox's folder.
const (
	stateFile   = "state.json"
	lockFile    = "lock"
	socketFile  = "wire.sock"
	controlFile = "control.sock"
	watchFile   = "watch.sock"
	channelFile = "channel.sock"
	logFile     = "log"
)

// maxState bounds the size of a state.json in bytes.
const maxState = 1 << 20

func writeInfo(dir string, i Info) error { return i.write(dir, filestamp.WriteFile) }

// write writes the state.json with one of the functions of package filestamp.
func (i Info) write(dir string, write func(string, []byte, os.FileMode) error) error {
	i.State = i.State.stored()
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, stateFile), append(b, '\n'), 0o600)
}

// readInfo reads the state.json of the sandbox id in dir.
func readInfo(dir string, id turnstone.SandboxID) (Info, error) {
	f, err := os.Open(filepath.Join(dir, stateFile))
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return Info{}, err
	}
	return parseInfo(b, id)
}

// parseInfo decodes and validates a state.json.
func parseInfo(b []byte, id turnstone.SandboxID) (Info, error) {
	var i Info
	if len(b) > maxState {
		return i, fmt.Errorf("longer than %d bytes", maxState)
	}
	if err := json.Unmarshal(b, &i); err != nil {
		return i, err
	}
	if _, known := transitions[i.State]; !known {
		return i, fmt.Errorf("the unknown state %.40q", i.State)
	}
	if i.ID != id {
		return i, fmt.Errorf("it describes another sandbox, %.40q", i.ID)
	}
	if i.Name != "" {
		if err := CheckName(i.Name); err != nil {
			return i, err
		}
	}
	return i, nil
}

var (
	nameForm = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	idForm   = lazyregexp.New(`^sb_[0-9a-v]{18}$`)
)

// IsID reports whether ref has the form of a sandbox's ID.
func IsID(ref string) bool { return idForm.MatchString(ref) }

// CheckName reports whether name is a valid name for a sandbox: 1 to 63 letters, digits, '.', '_'
// and '-', the first a letter or digit, and not like an ID. The error is of kind KindInvalid.
func CheckName(name string) error {
	e := turnstone.NewError("sandbox.name", turnstone.KindInvalid, fmt.Sprintf("name %.80q", name),
		nil).
		WithHint("use at most 63 letters, digits, '.', '_' and '-', and begin with a letter or " +
			"digit")
	switch {
	case !nameForm.MatchString(name):
		e.Err = errors.New("cannot be the name of a sandbox")
	case len(name) >= 3 && name[:3] == "sb_":
		e.Err, e.Hint = errors.New("looks like an ID"), "choose a name that does not begin with sb_"
	default:
		return nil
	}
	return e
}
