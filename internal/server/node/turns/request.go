package turns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

// request returns the executor's request for a remote caller. The caller is as untrusted as the
// author of a document: what would grant something as a flag of the command line becomes a request
// of the document, which only the node's configuration grants. The session is the ticket's.
func request(doc *document.Document, t Ticket, s *wire.TurnSettings) (req executor.Request,
	times int, err error) {
	if !t.names(s.Session) {
		return req, 0, turnstone.Errorf("turn.run", turnstone.KindInvalid, "session "+s.Session,
			"is not the session of the ticket").WithHint("start the turn for this session")
	}
	if s.Times != 0 && (s.Times < 2 || s.Times > 100) {
		return req, 0, invalid("times", fmt.Errorf("%d is not between 2 and 100", s.Times))
	}
	if f := doc.Front.Files; len(f) > 0 && !s.FilesSent {
		return req, 0, turnstone.Errorf("turn.run", turnstone.KindInvalid, "files: "+f[0],
			"is on the caller's machine, and was not sent").
			WithHint("use a client that sends the files of documents")
	}
	if named := doc.Front.Session; named != "" && t.Session == "" {
		return req, 0, turnstone.Errorf("turn.run", turnstone.KindInvalid, "session: "+named,
			"is what only the caller can grant").WithHint("add --session " + named)
	}
	asked := *doc // the document is the caller's; its front matter gets the caller's requests
	front := &asked.Front
	if s.Image != "" {
		front.Image = s.Image
	}
	if s.Network != nil {
		front.Network = s.Network
	}
	if r := s.Rules; r != nil {
		// the caller's rules include the document's; an empty list of what is allowed has no place in
		// the message, and allows nothing
		only := front.NetworkRules != nil && front.NetworkRules.HasAllow
		front.NetworkRules = &document.NetworkRules{Allow: r.Allow, Deny: r.Deny,
			HasAllow: only || len(r.Allow) > 0, Record: r.Record, Replay: r.Replay, ReplayOf: r.ReplayOf,
			Intercept: r.Intercept, NoHostCA: r.NoHostCA}
	}
	if s.Lifetime != "" {
		front.Lifetime = turnstone.Lifetime(s.Lifetime)
	}
	if s.Checkpoint != "" {
		front.Checkpoint = turnstone.Checkpoint(s.Checkpoint)
	}
	if s.Snapshot != "" {
		front.Snapshot = document.Snapshot(s.Snapshot)
	}
	if s.Isolation != "" {
		front.Isolation = document.Isolation(s.Isolation)
	}
	asked.Defaults.Guest = s.Guest
	front.Files = nil                    // they are among the transfers
	front.Session, front.Branch = "", "" // named by the ticket and the caller, or not at all
	if err := bound(front, t, s); err != nil {
		return req, 0, err
	}
	req = executor.Request{Document: &asked, Piped: true, Env: slices.Clone(s.Env),
		Timeout: time.Duration(s.Timeout), CPUs: int(s.CPUs), Memory: turnstone.Bytes(s.Memory),
		Disk: turnstone.Bytes(s.Disk), SecretHeaders: slices.Clone(s.SecretHeaders),
		Secrets: slices.Clone(s.Secrets), Commands: s.Commands, Branch: s.Branch,
		Home:          s.Home, // one of the caller's own, so that naming it grants it
		Session:       cmp.Or(string(t.SessionID), t.Session),
		Deterministic: s.Deterministic, Tier: turnstone.Tier(s.Tier), Remote: true}
	if s.Seed != "" {
		seed, err := strconv.ParseUint(s.Seed, 10, 64)
		if err != nil {
			return req, 0, invalid("seed", err)
		}
		req.Seed = &seed
	}
	if s.Clock != "" {
		if req.Clock, err = time.Parse(time.RFC3339, s.Clock); err != nil {
			return req, 0, invalid("clock", err)
		}
	}
	return req, int(s.Times), nil
}

var turnID = regexp.MustCompile(`^t_[0-9a-v]{18}$`)

// resumption returns the executor's request for a remote caller that resumes an interrupted turn of
// the ticket's session.
func resumption(t Ticket, s *wire.TurnSettings) (executor.ResumeTurnRequest, error) {
	var none executor.ResumeTurnRequest
	if !t.names(s.Session) || t.Session == "" {
		return none, turnstone.Errorf("turn.run", turnstone.KindInvalid, "session "+s.Session,
			"is not the session of the ticket").WithHint("start the turn for the session of the turn")
	}
	other := *s
	other.Resume, other.Session, other.Secrets, other.SecretHeaders = "", "", nil, nil
	other.Commands, other.FilesSent = false, false
	if !reflect.DeepEqual(other, wire.TurnSettings{}) {
		return none, invalid("resume", errors.New("other settings are those of the interrupted turn"))
	}
	if !turnID.MatchString(s.Resume) {
		return none, invalid("resume", fmt.Errorf("%.80q is not the ID of a turn", s.Resume))
	}
	return executor.ResumeTurnRequest{Ref: s.Resume, Session: cmp.Or(string(t.SessionID), t.Session),
		Secrets: slices.Clone(s.Secrets), SecretHeaders: slices.Clone(s.SecretHeaders),
		Commands: s.Commands, Remote: true, Most: t.Machine.Over(t.Most), MostTime: t.Timeout}, nil
}

// bound keeps a turn within its ticket, for which the caller's token was judged. It completes the
// front matter and the settings.
func bound(front *document.FrontMatter, t Ticket, s *wire.TurnSettings) error {
	beyond := func(what, format string, args ...any) error {
		return turnstone.Errorf("turn.run", turnstone.KindInvalid, what, format, args...).
			WithHint("start the turn at the server for what its document asks")
	}
	switch allowed := cmp.Or(t.Template, executor.DefaultImage); {
	case front.Image == "":
		if t.SessionID == "" { // otherwise the session's state names it
			front.Image = t.Template
		}
	case !template.SameImage(front.Image, allowed):
		return beyond("image: "+front.Image, "is not the ticket's, %s", allowed)
	}
	cpus, memory := cmp.Or(int(s.CPUs), front.CPUs), cmp.Or(turnstone.Bytes(s.Memory), front.Memory)
	disk := cmp.Or(turnstone.Bytes(s.Disk), front.Disk)
	timeout := cmp.Or(time.Duration(s.Timeout), front.Timeout)
	switch m := t.Machine.Over(t.Most); {
	case m.CPUs > 0 && cpus > m.CPUs:
		return beyond("cpus", "%d is more than the ticket's %d", cpus, m.CPUs)
	case m.Memory > 0 && memory > m.Memory:
		return beyond("memory", "%s is more than the ticket's %s", memory, m.Memory)
	case m.Disk > 0 && disk > m.Disk:
		return beyond("disk", "%s is more than the ticket's %s", disk, m.Disk)
	case t.Timeout > 0 && timeout > t.Timeout:
		return beyond("timeout", "%s is more than the ticket's %s", timeout, t.Timeout)
	}
	front.CPUs, front.Memory = cmp.Or(cpus, t.Machine.CPUs), cmp.Or(memory, t.Machine.Memory)
	front.Disk, front.Timeout = cmp.Or(disk, t.Machine.Disk), cmp.Or(timeout, t.Timeout)
	return nil
}

func invalid(setting string, err error) error {
	return turnstone.NewError("turn.run", turnstone.KindInvalid, setting, err)
}

// Request returns the executor's request for the settings of a remote caller, whose session is the
// caller's to use: the turn is no ticket's.
func Request(doc *document.Document, s *wire.TurnSettings) (executor.Request, error) {
	req, _, err := request(doc, Ticket{Session: s.Session}, s)
	return req, err
}

// ReceiveFiles unpacks a stream of a client into dir, and returns the transfers that s names, whose
// files are in dir.
func ReceiveFiles(ctx context.Context, c *wire.Conn, id wire.StreamID, dir string,
	s *wire.TurnSettings) ([]document.Transfer, error) {
	if err := receiveFiles(ctx, c, id, dir); err != nil || s == nil {
		return nil, err
	}
	return transfers(s, dir)
}

// maxTransfers bounds the files and folders of a turn.
const maxTransfers = 1000

// transfers returns the transfers of a request, whose files are in the folder dir. The names come
// from the caller: each is a folder and a name in it, because a copy into an existing folder keeps
// the name.
func transfers(s *wire.TurnSettings, dir string) ([]document.Transfer, error) {
	if len(s.Add) > maxTransfers {
		return nil, invalid("add", fmt.Errorf("has more than %d files", maxTransfers))
	}
	var all []document.Transfer
	for _, t := range s.Add {
		folder, file, ok := strings.Cut(t.Name, "/")
		if !ok || !single(folder) || !single(file) {
			return nil, invalid("add", fmt.Errorf("%.80q is not a folder and a name", t.Name))
		}
		path := filepath.Join(dir, folder, file)
		above, err := os.Lstat(filepath.Dir(path))
		if err != nil || !above.IsDir() { // such as a symbolic link
			return nil, invalid("add", fmt.Errorf("%.80q is not in the stream", t.Name))
		}
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
			return nil, invalid("add", fmt.Errorf("%.80q is no file or folder of the stream", t.Name))
		}
		all = append(all, document.Transfer{Path: path, Dest: t.Dest})
	}
	return all, nil
}

// single reports whether name is one element of a path.
func single(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
