package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// A KernelReport says what a guest kernel has of what machines need.
type KernelReport struct {
	File    string           `json:"file"`
	Format  string           `json:"format"`  // "vmlinux" or "bzImage"
	Version string           `json:"version"` // "" when the image does not tell
	Digest  turnstone.Digest `json:"digest"`  // of what is booted: of a bzImage, the vmlinux inside it where there is one
	Config  bool             `json:"config"`  // the image carries its configuration
	Test    bool             `json:"test"`    // the image says that it is made for tests
	Boot    KernelBoot       `json:"boot"`
	Needs   []KernelNeed     `json:"needs"`
}

// A KernelBoot is how the kernel started to be looked at.
type KernelBoot struct {
	Done      bool             `json:"done"`
	Failed    bool             `json:"failed"`              // a machine was started, and the agent in it did not report
	Isolation string           `json:"isolation,omitempty"` // what it ran on, as "microvm (TCG)"
	Took      turnstone.Millis `json:"took_ms,omitempty"`
	Why       string           `json:"why,omitempty"` // why it is not done
	// What the running kernel says of itself, or shows.
	Release string `json:"release,omitempty"` // by uname(2)
	Open    bool   `json:"open,omitempty"`    // programs can read its memory: in the guest nothing separates them
	Refused string `json:"refused,omitempty"` // why no machine is used that runs this kernel
}

// A Presence says whether a kernel has something.
type Presence string

// The presences.
const (
	BuiltIn  Presence = "built in"
	AsModule Presence = "module" // that can be loaded
	Present  Presence = "present"
	Missing  Presence = "missing"
	Unknown  Presence = "unknown"
)

// A KernelNeed is one thing that machines need or use.
type KernelNeed struct {
	Name     string     `json:"name"`
	What     string     `json:"what"`
	Level    need.Level `json:"level"`
	Presence Presence   `json:"presence"`
	Source   string     `json:"source"` // what tells: "boot", "config", "modules"; "" when nothing does
	Config   string     `json:"config"` // the options that give it
	Without  string     `json:"without"`
	Detail   string     `json:"detail,omitempty"`
}

// Status grades n: what only one substrate needs stops nothing by itself.
func (n KernelNeed) Status() Status {
	switch {
	case n.Presence == Missing && n.Level == need.Always:
		return StatusFail
	case n.Presence == Missing || n.Presence == Unknown && n.Level != need.Optional:
		return StatusWarn
	}
	return StatusOK
}

// Usable reports whether machines of this level's substrate can start: nothing necessary
// is known to be missing, and the kernel did not fail to boot.
func (r *KernelReport) Usable(level need.Level) bool {
	for _, n := range r.Needs {
		if n.Presence == Missing && (n.Level == need.Always || n.Level == level) {
			return false
		}
	}
	return !r.Boot.Failed && r.Boot.Refused == ""
}

// Kernel looks at a guest kernel: image is a vmlinux or a bzImage, modules its folder
// lib/modules/<release> or empty. Where there is QEMU the kernel is booted for it, in a
// small machine of its own that has nothing of the host's and ends within minutes. A file that is no kernel is an error of kind Invalid. Nothing stays.
func Kernel(ctx context.Context, h *statedir.Dir, image, modules string, progress func(string)) (*KernelReport, error) {
	dir, err := h.MkdirAll("kernel")
	if err != nil {
		return nil, err
	}
	k, err := kernel.Inspect(ctx, dir, image, modules)
	if err != nil {
		return nil, err
	}
	r := &KernelReport{File: image, Format: k.Facts.Format, Version: k.Facts.Version, Digest: k.Kernel.Digest, Config: k.Facts.Config != nil, Test: k.Kernel.Test}
	has, err := r.boot(ctx, h, k, progress)
	if err = errors.Join(err, k.Close()); err != nil {
		return nil, err
	}
	for _, n := range need.All() {
		r.Needs = append(r.Needs, judge(n, k.Facts, has))
	}
	return r, nil
}

// boot starts the kernel, and returns what the agent in it says. An error is one that
// says nothing of the kernel and leaves nothing to say.
func (r *KernelReport) boot(ctx context.Context, h *statedir.Dir, k *kernel.Inspected, progress func(string)) (map[string]bool, error) {
	q, err := qemu.New(ctx, h, qemu.Options{})
	if err != nil {
		r.Boot.Why = oneLine(err)
		return nil, ctx.Err()
	}
	agent, err := agentbin.Agent()
	if err != nil {
		r.Boot.Why = oneLine(err)
		return nil, nil
	}
	m := substrate.Machine{Kernel: k.Kernel.Vmlinux, KernelDigest: k.Kernel.Digest,
		KernelIs: substrate.KernelKind{Own: true, Test: k.Kernel.Test, Release: k.Kernel.Release, File: r.File}}
	if m.Initramfs, m.InitDigest, err = k.Kernel.Initramfs(ctx, k.Dir, kernel.Program(agent)); err != nil {
		return nil, err
	}
	progress("booting the kernel, to see what it has")
	report, err := q.CheckKernel(ctx, m)
	switch {
	case err == nil:
		r.Boot = KernelBoot{Done: true, Isolation: report.Isolation, Took: turnstone.Millis(report.Took), Release: report.Release, Open: report.Open}
		if err := driver.CheckRunning(m.KernelIs, report.Release, report.Open); err != nil {
			r.Boot.Refused = oneLine(err)
		}
		return report.Has, nil
	case turnstone.KindOf(err) == turnstone.KindDead:
		r.Boot = KernelBoot{Failed: true, Why: oneLine(err)}
		return nil, nil
	case ctx.Err() != nil:
		return nil, err
	}
	r.Boot.Why = oneLine(err)
	return nil, nil
}

// judge puts together what is known of n. What a running kernel says wins.
func judge(n need.Need, f kernel.Facts, has map[string]bool) KernelNeed {
	k := KernelNeed{Name: n.Name, What: n.What, Level: n.Level, Presence: Unknown, Config: n.Config(), Without: n.Without}
	k.byFiles(n, f)
	there, told := has[n.Name]
	switch {
	case !told:
	case !there:
		if k.Presence == AsModule {
			k.Detail = "its module was not loaded"
		}
		k.Presence, k.Source = Missing, "boot"
	case k.Presence != BuiltIn && k.Presence != AsModule:
		k.Presence, k.Source, k.Detail = Present, "boot", ""
	default:
		k.Source = "boot"
	}
	return k
}

// byFiles judges by the image and the folder of modules.
func (k *KernelNeed) byFiles(n need.Need, f kernel.Facts) {
	switch {
	case n.Since != "":
		k.bySince(n, f)
	case f.Config != nil:
		k.byConfig(n, f)
	case f.Builtin[n.Module] && n.Module != "":
		k.Presence, k.Source = BuiltIn, "modules"
	case f.Modules[n.Module] && n.Module != "":
		k.Presence, k.Source = AsModule, "modules"
	}
}

// byConfig judges by the embedded configuration, option by option: the worst counts.
func (k *KernelNeed) byConfig(n need.Need, f kernel.Facts) {
	k.Presence, k.Source = BuiltIn, "config"
	for _, option := range n.Options {
		switch f.Config[option] {
		case "y":
		case "m":
			k.Presence = AsModule
		default:
			k.Presence = Missing
			if len(n.Options) > 1 {
				k.Detail = "CONFIG_" + option + " is not set"
			}
			return
		}
	}
	if k.Presence != AsModule {
		return
	}
	switch {
	case n.Module == "" || f.Modules == nil:
		k.Presence, k.Detail = Missing, "it is a module, and its folder was not given: --kernel-modules"
	case !f.Modules[n.Module]:
		k.Presence, k.Detail = Missing, "there is no module "+n.Module
	}
}

// bySince judges by the version of Linux.
func (k *KernelNeed) bySince(n need.Need, f kernel.Facts) {
	var have, want [2]int
	if _, err := fmt.Sscanf(f.Version, "%d.%d", &have[0], &have[1]); err != nil {
		return
	}
	if _, err := fmt.Sscanf(n.Since, "%d.%d", &want[0], &want[1]); err != nil {
		return
	}
	k.Presence, k.Source = BuiltIn, "version"
	if have[0] < want[0] || have[0] == want[0] && have[1] < want[1] {
		k.Presence, k.Detail = Missing, "it is "+f.Version
	}
}

// Findings are the report in the form of Check: the image, the boot, the substrates, and
// each need.
func (r *KernelReport) Findings() []Finding {
	image := fmt.Sprintf("%s %s: %s", r.Format, orUnknown(r.Version), r.File)
	if !r.Config {
		image += " (carries no configuration: CONFIG_IKCONFIG)"
	}
	found := []Finding{{Name: "image", Status: StatusOK, Detail: image}}
	switch {
	case r.Boot.Done:
		found = append(found, Finding{Name: "boot", Status: StatusOK, Detail: fmt.Sprintf("the agent in it reports, %s, after %s", r.Boot.Isolation, time.Duration(r.Boot.Took).Round(10*time.Millisecond))})
	case r.Boot.Failed:
		found = append(found, Finding{Name: "boot", Status: StatusFail, Detail: r.Boot.Why})
	default:
		found = append(found, Finding{Name: "boot", Status: StatusWarn, Detail: "not tried: " + r.Boot.Why})
	}
	found = append(found, r.separation())
	for _, n := range r.Needs {
		found = append(found, Finding{Name: n.Name, Status: n.Status(), Detail: n.line()})
	}
	return append(found, r.substrate("qemu", need.QEMU), r.substrate("firecracker", need.Firecracker))
}

// separation says whether the kernel keeps programs apart from itself, as far as it is known.
func (r *KernelReport) separation() Finding {
	f := Finding{Name: "isolation", Status: StatusOK, Detail: "programs cannot read the memory of the kernel at its usual addresses, and " + r.Boot.Release + " is no test kernel"}
	switch {
	case r.Boot.Refused != "":
		f.Status, f.Detail = StatusFail, r.Boot.Refused
	case r.Test:
		f.Status, f.Detail = StatusWarn, "a test kernel, which is none inside the guest: auto takes it last, and `isolation: microvm` is refused"
	case !r.Boot.Done:
		f.Status, f.Detail = StatusWarn, "not known, as the kernel was not looked at while it ran"
	}
	return f
}

func orUnknown(version string) string {
	if version == "" {
		return "of an unknown version"
	}
	return version
}

// line says what there is, and what is lost where there is not.
func (n KernelNeed) line() string {
	who := map[need.Level]string{need.Always: "necessary", need.QEMU: "necessary on QEMU", need.Firecracker: "necessary on Firecracker", need.Optional: "optional"}
	line := who[n.Level] + ", " + string(n.Presence)
	if n.Presence == Missing || n.Presence == Unknown {
		line += fmt.Sprintf(": %s (%s)", n.What, n.Config)
		if n.Detail != "" {
			line += "; " + n.Detail
		}
		line += "; without it: " + n.Without
	}
	return line
}

// substrate says whether its machines start with this kernel.
func (r *KernelReport) substrate(name string, level need.Level) Finding {
	var lacks, unknown []string
	for _, n := range r.Needs {
		switch {
		case n.Level != need.Always && n.Level != level:
		case n.Presence == Missing:
			lacks = append(lacks, n.Name)
		case n.Presence == Unknown:
			unknown = append(unknown, n.Name)
		}
	}
	switch {
	case len(lacks) > 0:
		return Finding{Name: name, Status: StatusWarn, Detail: "machines do not start with this kernel: it has no " + strings.Join(lacks, ", ")}
	case r.Boot.Failed:
		return Finding{Name: name, Status: StatusWarn, Detail: "machines do not start with this kernel: it does not boot"}
	case r.Boot.Refused != "":
		return Finding{Name: name, Status: StatusWarn, Detail: "machines with this kernel are refused: it is not what its image says"}
	case len(unknown) > 0:
		return Finding{Name: name, Status: StatusWarn, Detail: "not known, as it depends on " + strings.Join(unknown, ", ")}
	}
	return Finding{Name: name, Status: StatusOK, Detail: "has what machines need"}
}
