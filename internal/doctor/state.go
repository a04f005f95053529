package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/template"
)

// kernelName names the kernel that the user's guests boot, and its source.
func (c *checker) kernelName() string {
	if c.opt.Kernel == "" && c.choice.Image != "" {
		return "config.toml: kernel = " + c.choice.Image
	}
	return "TURN_KERNEL=" + c.opt.kernel(c.choice).Image
}

// kernel checks the stored guest kernel or the user's choice.
func (c *checker) kernel(ctx context.Context) []Finding {
	if choice := c.opt.kernel(c.choice); choice.Own() {
		fix := "unset TURN_KERNEL"
		if c.opt.Kernel == "" && c.choice.Image != "" {
			fix = "${EDITOR:-vi} " + quote(c.home.Path(config.File))
		}
		guest, err := driver.KernelIn(c.home, choice, nil).Guest(ctx)
		if err != nil {
			return findingOf("kernel", StatusFail, c.kernelName()+": "+brief.Line(err.Error()), fix)
		}
		if guest.Test {
			return findingOf("kernel", StatusWarn,
				c.kernelName()+" is a test kernel, which does not isolate: auto chooses it last, "+
					"and `isolation: microvm` is rejected", fix)
		}
		return findingOf("kernel", StatusOK, c.kernelName(), "")
	}
	// fails for a malformed pattern only
	manifests, _ := filepath.Glob(c.home.Path("kernel", "debian-*", "manifest.json"))
	for _, path := range manifests {
		var m struct {
			Version string `json:"version"`
		}
		if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &m) == nil &&
			m.Version != "" {
			return findingOf("kernel", StatusOK, "Debian's "+m.Version, "")
		}
	}
	return findingOf("kernel", StatusOK,
		"not stored yet: the first turn downloads Debian's (about 70 MB)", "")
}

// templates lists the built templates. The others are built on first use.
func (c *checker) templates(ctx context.Context) []Finding {
	entries, err := template.NewStore(c.home.Path("templates")).List(ctx)
	if err != nil {
		return findingOf("templates", StatusWarn, err.Error(), "")
	}
	var ready, missing []string
	for _, e := range entries {
		if e.Ready {
			ready = append(ready, fmt.Sprintf("%s (%s)", e.Name, turnstone.Bytes(e.Size).Human()))
		} else {
			missing = append(missing, e.Name)
		}
	}
	c.built = len(ready) > 0
	detail := "built: " + list(ready)
	if len(missing) > 0 {
		detail += "; built on first use: " + list(missing)
	}
	return findingOf("templates", StatusOK, detail, "")
}

func list(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// snapshots reports the number of snapshots and their disk usage.
func (c *checker) snapshots(context.Context) []Finding {
	dir := c.home.Path("snapshots")
	manifests, _ := filepath.Glob(filepath.Join(dir, "*", "manifest.json"))
	ofGVisor, _ := filepath.Glob(filepath.Join(dir, "*", "sandbox.json"))
	manifests = append(manifests, ofGVisor...)
	if len(manifests) == 0 {
		return findingOf("snapshots", StatusOK,
			"none yet: the first turn of each template and machine size takes a snapshot", "")
	}
	return findingOf("snapshots", StatusOK,
		fmt.Sprintf("%s, %s on disk", count(len(manifests), "snapshot"), onDisk(dir).Human()), "")
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// onDisk returns the disk usage below dir, without holes and unreadable files.
func onDisk(dir string) turnstone.Bytes {
	var sum turnstone.Bytes
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return fs.SkipDir
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			sum += turnstone.Bytes(st.Blocks * 512) // stat(2) counts blocks of 512 bytes
		}
		return nil
	})
	return sum
}
