package envd

import (
	"cmp"
	"context"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b/envdapi/filesystem"
	"turnstone.dev/turnstone/wire"
)

// files implements filesystemconnect.FilesystemHandler.
type files struct{ s *Service }

// Bounds of a list.
const (
	maxEntries = 20_000
	maxDepth   = 64
)

// A place is a path of a sandbox that a request names, and the way there.
type place struct {
	c     *wire.Conn
	v     visitor
	owner string // of what the agent creates: the sandbox's user
	names *names
}

// at opens the sandbox of a request in the name of its user. The caller closes the connection.
func at(ctx context.Context, user string, o wire.Options) (*place, error) {
	c, b, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	v, err := visit(ctx, c, b, user)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &place{c, v, b.User, &names{c: c}}, nil
}

// do calls f with the place that a request names.
func do[Q any](ctx context.Context, r *connect.Request[Q], name string,
	f func(p *place, path string) error) error {
	user, err := userOf(r.Header())
	if err != nil {
		return err
	}
	p, err := at(ctx, user, wire.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = p.c.Close() }()
	full, err := p.v.resolve(name)
	if err != nil {
		return err
	}
	return f(p, full)
}

// stat returns what is at a path, itself.
func (p *place) stat(ctx context.Context, name string) (*wire.FileSystemFileInfo, error) {
	follow := false
	r, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: name, Follow: &follow})
	if err != nil {
		return nil, missing(err, name)
	}
	return &r.File, nil
}

// entry returns what is at a path for a caller.
func (p *place) entry(ctx context.Context, name string) (*filesystem.EntryInfo, error) {
	i, err := p.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return p.describe(ctx, i), nil
}

func missing(err error, name string) error {
	if kindOf(err) == turnstone.KindNotFound {
		return fail(connect.CodeNotFound, "path not found: "+name)
	}
	return err
}

// Stat describes a file.
func (f files) Stat(ctx context.Context, r *connect.Request[filesystem.StatRequest]) (
	*connect.Response[filesystem.StatResponse], error) {
	out := &filesystem.StatResponse{}
	err := do(ctx, r, r.Msg.Path, func(p *place, name string) (err error) {
		out.Entry, err = p.entry(ctx, name)
		return err
	})
	return connect.NewResponse(out), err
}

// MakeDir makes a directory and those above it.
func (f files) MakeDir(ctx context.Context, r *connect.Request[filesystem.MakeDirRequest]) (
	*connect.Response[filesystem.MakeDirResponse], error) {
	out := &filesystem.MakeDirResponse{}
	err := do(ctx, r, r.Msg.Path, func(p *place, name string) error {
		i, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: name})
		if err == nil {
			if i.File.Type == wire.FileSystemFileInfoTypeDirectory {
				return fail(connect.CodeAlreadyExists, "directory already exists: "+name)
			}
			return fail(connect.CodeInvalidArgument, "path already exists but it is not a directory: "+name)
		}
		above, err := p.above(ctx, name)
		if err != nil {
			return err
		}
		if err := p.c.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: name, Parents: true}); err != nil {
			return err
		}
		if err := p.own(ctx, above); err != nil {
			return err
		}
		out.Entry, err = p.entry(ctx, name)
		return err
	})
	return connect.NewResponse(out), err
}

// Move renames a file or a directory, and replaces a file.
func (f files) Move(ctx context.Context, r *connect.Request[filesystem.MoveRequest]) (
	*connect.Response[filesystem.MoveResponse], error) {
	out := &filesystem.MoveResponse{}
	err := do(ctx, r, r.Msg.Source, func(p *place, from string) error {
		to, err := p.v.resolve(r.Msg.Destination)
		if err != nil {
			return err
		}
		if _, err := p.stat(ctx, from); err != nil {
			return err
		}
		parent := path.Dir(to)
		if err := p.c.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: parent, Parents: true}); err != nil {
			return err
		}
		err = p.c.FileSystemMove(ctx, &wire.FileSystemMoveParams{From: from, To: to, Overwrite: true})
		if err != nil {
			return missing(err, from)
		}
		out.Entry, err = p.entry(ctx, to)
		return err
	})
	return connect.NewResponse(out), err
}

// ListDir lists a directory, and directories in it down to a depth.
func (f files) ListDir(ctx context.Context, r *connect.Request[filesystem.ListDirRequest]) (
	*connect.Response[filesystem.ListDirResponse], error) {
	out := &filesystem.ListDirResponse{}
	err := do(ctx, r, r.Msg.Path, func(p *place, name string) error {
		i, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: name})
		if err != nil {
			return missing(err, name)
		}
		if i.File.Type != wire.FileSystemFileInfoTypeDirectory {
			return fail(connect.CodeInvalidArgument, "path is not a directory: "+name)
		}
		return p.list(ctx, name, int(min(max(r.Msg.Depth, 1), maxDepth)), &out.Entries)
	})
	return connect.NewResponse(out), err
}

// list appends the entries of a directory.
func (p *place) list(ctx context.Context, name string, depth int, all *[]*filesystem.EntryInfo) error {
	after := ""
	for {
		page, err := p.c.FileSystemList(ctx, &wire.FileSystemListParams{Path: name, After: after})
		if err != nil {
			return missing(err, name)
		}
		for n := range page.Entries {
			i := &page.Entries[n]
			if len(*all) >= maxEntries {
				return fail(connect.CodeResourceExhausted, "the list has more than "+
					strconv.Itoa(maxEntries)+" entries: list a smaller directory, or use a command")
			}
			*all = append(*all, p.describe(ctx, i))
			after = i.Name
			if depth > 1 && i.Type == wire.FileSystemFileInfoTypeDirectory {
				err := p.list(ctx, name+"/"+i.Name, depth-1, all)
				if err != nil && connect.CodeOf(toConnect(err)) != connect.CodeNotFound {
					return err
				}
			}
		}
		if !page.More || len(page.Entries) == 0 {
			return nil
		}
	}
}

// Remove removes a file, or a directory with its contents. What does not exist is removed.
func (f files) Remove(ctx context.Context, r *connect.Request[filesystem.RemoveRequest]) (
	*connect.Response[filesystem.RemoveResponse], error) {
	err := do(ctx, r, r.Msg.Path, func(p *place, name string) error {
		if name == "/" {
			return fail(connect.CodeInvalidArgument, "the root directory cannot be removed")
		}
		err := p.c.FileSystemRemove(ctx, &wire.FileSystemRemoveParams{Path: name, Recursive: true})
		if kindOf(err) == turnstone.KindNotFound {
			return nil
		}
		return err
	})
	return connect.NewResponse(&filesystem.RemoveResponse{}), err
}

// names are the names of users and groups of a sandbox, read when they are needed.
type names struct {
	c      *wire.Conn
	read   bool
	users  map[int64]string
	groups map[int64]string
}

func (n *names) load(ctx context.Context) {
	if n.read {
		return
	}
	n.read, n.users = true, map[int64]string{}
	for _, a := range accounts(ctx, n.c) {
		n.users[a.uid] = a.name
	}
	r, err := n.c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: "/etc/group", Length: maxPasswd})
	if err == nil {
		n.groups = parseGroups(string(r.Data))
	}
}

// user and group return a name; a number that has none is its own.
func (n *names) user(ctx context.Context, id int64) string {
	if id == 0 {
		return rootName
	}
	n.load(ctx)
	return orNumber(n.users[id], id)
}

func (n *names) group(ctx context.Context, id int64) string {
	if id == 0 {
		return rootName
	}
	n.load(ctx)
	return orNumber(n.groups[id], id)
}

func orNumber(name string, id int64) string {
	if name == "" {
		return strconv.FormatInt(id, 10)
	}
	return name
}

var types = map[wire.FileSystemFileInfoType]filesystem.FileType{
	wire.FileSystemFileInfoTypeFile:      filesystem.FileType_FILE_TYPE_FILE,
	wire.FileSystemFileInfoTypeDirectory: filesystem.FileType_FILE_TYPE_DIRECTORY,
}

// describe returns an entry for a caller, as E2B's daemon does: of a link the type and the mode of what
// it leads to, and as its target the path of that, or its own if it leads nowhere.
func (p *place) describe(ctx context.Context, i *wire.FileSystemFileInfo) *filesystem.EntryInfo {
	e := &filesystem.EntryInfo{Name: i.Name, Path: i.Path, Type: types[i.Type], Size: i.Size,
		Mode: uint32(i.Mode & 0o777), Owner: p.names.user(ctx, i.UID),
		Group: p.names.group(ctx, i.GID), Permissions: permissions(i)}
	if at, err := time.Parse(time.RFC3339Nano, i.Modified); err == nil {
		e.ModifiedTime = timestamppb.New(at)
	}
	if i.Type == wire.FileSystemFileInfoTypeSymlink {
		target := i.Path
		e.IsSymlink, e.Mode = true, 0
		if to, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: i.Path}); err == nil {
			e.Type, e.Mode = types[to.File.Type], uint32(to.File.Mode&0o777)
			target = cmp.Or(to.File.Resolved, i.Path)
		}
		e.SymlinkTarget = &target
	}
	for _, s := range []*string{&e.Name, &e.Path, e.SymlinkTarget} {
		if s != nil {
			*s = strings.ToValidUTF8(*s, "\uFFFD") // protobuf has no other texts
		}
	}
	return e
}

// modes are the bits by which Go prints a type, and a mode beyond the permissions.
var modes = map[wire.FileSystemFileInfoType]fs.FileMode{
	wire.FileSystemFileInfoTypeDirectory: fs.ModeDir,
	wire.FileSystemFileInfoTypeSymlink:   fs.ModeSymlink,
	wire.FileSystemFileInfoTypeFifo:      fs.ModeNamedPipe,
	wire.FileSystemFileInfoTypeSocket:    fs.ModeSocket,
	wire.FileSystemFileInfoTypeBlock:     fs.ModeDevice,
	wire.FileSystemFileInfoTypeChar:      fs.ModeDevice | fs.ModeCharDevice,
}

// permissions returns the mode of a file as Go prints it.
func permissions(i *wire.FileSystemFileInfo) string {
	mode := fs.FileMode(i.Mode&0o777) | modes[i.Type]
	for bit, m := range map[int64]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
		unix.S_ISVTX: fs.ModeSticky} {
		if i.Mode&bit != 0 {
			mode |= m
		}
	}
	return mode.String()
}

// above returns the first of the directories on the way to a path that does not exist, or the path.
func (p *place) above(ctx context.Context, name string) (string, error) {
	for at := name; ; {
		parent := path.Dir(at)
		if parent == at {
			return at, nil
		}
		_, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: parent})
		if err == nil {
			return at, nil
		}
		if kindOf(err) != turnstone.KindNotFound {
			return "", err
		}
		at = parent
	}
}

// own gives what is at a path to the user of the request. The agent's files belong to root, or to the sandbox's user in
// its own directories.
func (p *place) own(ctx context.Context, name string) error {
	isRoot := func(name string) bool { return name == "" || name == rootName || name == "0" }
	to := cmp.Or(p.v.name, rootName)
	if isRoot(to) && isRoot(p.owner) {
		return nil
	}
	res, err := p.c.ProcessStart(ctx, &wire.ProcessStartParams{Detach: true, User: rootName,
		Argv: []string{"chown", "-R", "-h", to + ":", "--", name}, Cwd: "/"})
	if err != nil {
		return err
	}
	x, err := p.c.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: res.ProcessID})
	if err != nil {
		return err
	}
	if x.Exit.ExitCode != 0 {
		return fail(connect.CodePermissionDenied, name+" cannot be given to "+to)
	}
	return nil
}
