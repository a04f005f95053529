package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone/internal/driver/host"
)

// builder checks the programs for building a template. A missing program stops turns only while no
// template is built.
func (c *checker) builder(ctx context.Context) []Finding {
	worst := StatusWarn
	if !c.built {
		worst = StatusFail
	}
	var found []Finding
	for _, p := range []struct{ program, pkg string }{
		{"mmdebstrap", "mmdebstrap"}, {"newuidmap", "uidmap"}, {"newgidmap", "uidmap"},
		{"mke2fs", "e2fsprogs"},
	} {
		found = append(found, c.program(p.program, p.pkg, worst))
	}
	if c.uid != 0 {
		found = append(found, c.subIDs("subuid", worst), c.subIDs("subgid", worst),
			userNamespaces(ctx, worst))
	}
	return found
}

// program searches for a program in PATH and in Debian's folders that an ordinary user's PATH
// omits.
func (c *checker) program(name, pkg string, worst Status) Finding {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin")
	for _, dir := range dirs {
		path := filepath.Join(c.root, dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() &&
			info.Mode()&0o111 != 0 {
			return Finding{Name: name, Status: StatusOK, Detail: path}
		}
	}
	return Finding{Name: name, Status: worst, Detail: "not installed",
		Fix: "sudo apt-get install --no-install-recommends -y " + pkg}
}

// subIDs checks the range of subordinate IDs (subuid(5)) that an ordinary user needs to build a
// tree with several owners.
func (c *checker) subIDs(file string, worst Status) Finding {
	const wanted = 65536
	me := strconv.Itoa(c.uid)
	name := me
	if u, err := user.LookupId(me); err == nil {
		name = u.Username
	}
	b, _ := os.ReadFile(filepath.Join(c.root, "etc", file)) // a missing file has no range
	free := 100000
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(fields[1])
		n, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil {
			continue
		}
		if (fields[0] == name || fields[0] == me) && n >= wanted {
			return Finding{Name: file, Status: StatusOK, Detail: strings.TrimSpace(line)}
		}
		free = max(free, first+n)
	}
	return Finding{Name: file, Status: worst,
		Detail: fmt.Sprintf("no range of %d IDs for %s in /etc/%s", wanted, name, file),
		Fix: fmt.Sprintf("sudo usermod --add-%ss %d-%d %s", file, free, free+wanted-1,
			quote(name))}
}

// userNamespaces starts a program in a new user namespace. Only this test covers every switch that
// may forbid it.
func userNamespaces(ctx context.Context, worst Status) Finding {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		return Finding{Name: "user namespaces", Status: worst,
			Detail: "a program cannot start in a user namespace: " + err.Error(),
			Fix:    host.AllowUserNamespaces()}
	}
	return Finding{Name: "user namespaces", Status: StatusOK,
		Detail: "a program starts in a user namespace"}
}
