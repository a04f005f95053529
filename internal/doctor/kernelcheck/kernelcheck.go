// Package kernelcheck compares a guest kernel with the needs of machines: by its image, its
// modules, and a boot.
package kernelcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// A KernelReport compares a guest kernel with the needs of machines. The name of the type, and
// those of its parts, are in the JSON schema.
type KernelReport struct {
	File    string `json:"file"`
	Format  string `json:"format"`  // "vmlinux" or "bzImage"
	Version string `json:"version"` // "" if the image does not contain it
	// of the booted file: for a bzImage, the vmlinux inside it if there is one
	Digest turnstone.Digest `json:"digest"`
	Config bool             `json:"config"` // the image contains its configuration
	Test   bool             `json:"test"`   // the image is a test kernel
	Boot   KernelBoot       `json:"boot"`
	Needs  []KernelNeed     `json:"needs"`
}

// A KernelBoot is the result of starting the kernel.
type KernelBoot struct {
	Done   bool `json:"done"`
	Failed bool `json:"failed"` // a machine was started, and its agent did not report
	// the machine's isolation, such as "microvm (TCG)"
	Isolation string           `json:"isolation,omitempty"`
	Took      turnstone.Millis `json:"took_ms,omitempty"`
	Why       string           `json:"why,omitempty"` // why the kernel was not started
	// Reported by the running kernel, or observed.
	Release string `json:"release,omitempty"` // from uname(2)
	// programs can read the kernel's memory: the guest does not separate them from the kernel
	Open    bool   `json:"open,omitempty"`
	Refused string `json:"refused,omitempty"` // why machines with this kernel are rejected
}

// A Presence describes whether a kernel has an ability.
type Presence string

// The presences.
const (
	BuiltIn  Presence = "built in"
	AsModule Presence = "module" // as a loadable module
	Present  Presence = "present"
	Missing  Presence = "missing"
	Unknown  Presence = "unknown"
)

// A KernelNeed is an ability that machines need or use.
type KernelNeed struct {
	Name     string     `json:"name"`
	What     string     `json:"what"`
	Level    need.Level `json:"level"`
	Presence Presence   `json:"presence"`
	// source of the result: "boot", "config", "modules"; "" if unknown
	Source  string `json:"source"`
	Config  string `json:"config"` // the options that provide the ability
	Without string `json:"without"`
	Detail  string `json:"detail,omitempty"`
}

// status grades n: a need of a single substrate is not fatal by itself.
func (n KernelNeed) status() doctor.Status {
	switch {
	case n.Presence == Missing && n.Level == need.Always:
		return doctor.StatusFail
	case n.Presence == Missing || n.Presence == Unknown && n.Level != need.Optional:
		return doctor.StatusWarn
	}
	return doctor.StatusOK
}

// Usable reports whether the machines of any substrate can start.
func (r *KernelReport) Usable() bool { return r.starts(need.QEMU) || r.starts(need.Firecracker) }

// starts reports whether machines of this level's substrate can start: no required ability is known
// to be missing, and the kernel did not fail to boot.
func (r *KernelReport) starts(level need.Level) bool {
	for _, n := range r.Needs {
		if n.Presence == Missing && (n.Level == need.Always || n.Level == level) {
			return false
		}
	}
	return !r.Boot.Failed && r.Boot.Refused == ""
}

// Options name the kernel to check.
type Options struct {
	Image     string       // a vmlinux or a bzImage
	Modules   string       // its folder lib/modules/<release>; empty: none
	AgentFile string       // the agent; empty: the embedded one
	QEMU      string       // QEMU's system emulator; empty: found in PATH
	Progress  func(string) // called before slow operations
}

// Check checks a guest kernel. If QEMU is available, Check boots the kernel in a small separate
// machine that has no access to the host and ends within minutes. A file other than a kernel is an
// error of kind Invalid. Nothing is kept.
func Check(ctx context.Context, h *statedir.Dir, o Options) (*KernelReport, error) {
	dir, err := h.MkdirAll("kernel")
	if err != nil {
		return nil, err
	}
	k, err := kernel.Inspect(ctx, dir, o.Image, o.Modules)
	if err != nil {
		return nil, err
	}
	r := &KernelReport{File: o.Image, Format: k.Facts.Format, Version: k.Facts.Version,
		Digest: k.Kernel.Digest, Config: k.Facts.Config != nil, Test: k.Kernel.Test}
	has, err := r.boot(ctx, h, o, k)
	if err = errors.Join(err, k.Close()); err != nil {
		return nil, err
	}
	for _, n := range need.All() {
		r.Needs = append(r.Needs, judge(n, k.Facts, has))
	}
	return r, nil
}

// boot starts the kernel and returns the agent's report. An error means that nothing about the
// kernel can be said.
func (r *KernelReport) boot(ctx context.Context, h *statedir.Dir, o Options,
	k *kernel.Inspected) (map[string]bool, error) {
	q, err := qemu.New(ctx, h, qemu.Options{Binary: o.QEMU})
	if err != nil {
		r.Boot.Why = brief.Line(err.Error())
		return nil, ctx.Err()
	}
	agent, err := agentbin.Agent(o.AgentFile)
	if err != nil {
		r.Boot.Why = brief.Line(err.Error())
		return nil, nil
	}
	m := substrate.Machine{Kernel: k.Kernel.Vmlinux, KernelDigest: k.Kernel.Digest,
		KernelIs: substrate.KernelKind{Own: true, Test: k.Kernel.Test, Release: k.Kernel.Release,
			File: r.File}}
	m.Initramfs, m.InitDigest, err = k.Kernel.Initramfs(ctx, k.Dir,
		kernel.Program(agent))
	if err != nil {
		return nil, err
	}
	o.Progress("booting the kernel to check its abilities")
	report, err := q.CheckKernel(ctx, m)
	switch {
	case err == nil:
		r.Boot = KernelBoot{Done: true, Isolation: report.Isolation,
			Took: turnstone.Millis(report.Took), Release: report.Release, Open: report.Open}
		if err := driver.CheckRunning(m.KernelIs, report.Release, report.Open); err != nil {
			r.Boot.Refused = brief.Line(err.Error())
		}
		return report.Has, nil
	case turnstone.KindOf(err) == turnstone.KindDead:
		r.Boot = KernelBoot{Failed: true, Why: brief.Line(err.Error())}
		return nil, nil
	case ctx.Err() != nil:
		return nil, err
	}
	r.Boot.Why = brief.Line(err.Error())
	return nil, nil
}

// judge combines the results for n. The running kernel's report takes precedence.
func judge(n need.Need, f kernel.Facts, has map[string]bool) KernelNeed {
	k := KernelNeed{Name: n.Name, What: n.What, Level: n.Level, Presence: Unknown,
		Config: n.Config(), Without: n.Without}
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

// byConfig judges by the embedded configuration, option by option; the worst option counts.
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
		k.Presence, k.Detail = Missing,
			"it is a module, and its folder was not given: --kernel-modules"
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

// Findings returns the report in the form of Check: the image, the boot, the substrates, and each
// need.
func (r *KernelReport) Findings() []doctor.Finding {
	image := fmt.Sprintf("%s %s: %s", r.Format, orUnknown(r.Version), r.File)
	if !r.Config {
		image += " (contains no configuration: CONFIG_IKCONFIG)"
	}
	found := []doctor.Finding{{Name: "image", Status: doctor.StatusOK, Detail: image}}
	switch {
	case r.Boot.Done:
		found = append(found, doctor.Finding{Name: "boot", Status: doctor.StatusOK,
			Detail: fmt.Sprintf("its agent reports, %s, after %s", r.Boot.Isolation,
				time.Duration(r.Boot.Took).Round(10*time.Millisecond))})
	case r.Boot.Failed:
		found = append(found, doctor.Finding{Name: "boot", Status: doctor.StatusFail,
			Detail: r.Boot.Why})
	default:
		found = append(found, doctor.Finding{Name: "boot", Status: doctor.StatusWarn,
			Detail: "not tried: " + r.Boot.Why})
	}
	found = append(found, r.separation())
	for _, n := range r.Needs {
		found = append(found, doctor.Finding{Name: n.Name, Status: n.status(), Detail: n.line()})
	}
	return append(found, r.substrate("qemu", need.QEMU),
		r.substrate("firecracker", need.Firecracker))
}

// separation tells whether the kernel separates programs from itself, as far as known.
func (r *KernelReport) separation() doctor.Finding {
	f := doctor.Finding{Name: "isolation", Status: doctor.StatusOK,
		Detail: "programs cannot read the kernel's memory at its usual addresses, and " +
			r.Boot.Release + " is not a test kernel"}
	switch {
	case r.Boot.Refused != "":
		f.Status, f.Detail = doctor.StatusFail, r.Boot.Refused
	case r.Test:
		f.Status, f.Detail = doctor.StatusWarn,
			"a test kernel, which does not isolate inside the guest: auto chooses it last, and "+
				"`isolation: microvm` is rejected"
	case !r.Boot.Done:
		f.Status, f.Detail = doctor.StatusWarn,
			"unknown because the kernel was not observed while running"
	}
	return f
}

func orUnknown(version string) string {
	if version == "" {
		return "of an unknown version"
	}
	return version
}

// line tells what is present, and the consequences of what is missing.
func (n KernelNeed) line() string {
	who := map[need.Level]string{need.Always: "necessary", need.QEMU: "required on QEMU",
		need.Firecracker: "required on Firecracker", need.Optional: "optional"}
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

// substrate reports whether the substrate's machines start with this kernel.
func (r *KernelReport) substrate(name string, level need.Level) doctor.Finding {
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
		return doctor.Finding{Name: name, Status: doctor.StatusWarn,
			Detail: "machines do not start with this kernel: it has no " +
				strings.Join(lacks, ", ")}
	case r.Boot.Failed:
		return doctor.Finding{Name: name, Status: doctor.StatusWarn,
			Detail: "machines do not start with this kernel: it does not boot"}
	case r.Boot.Refused != "":
		return doctor.Finding{Name: name, Status: doctor.StatusWarn,
			Detail: "machines with this kernel are rejected: it differs from the kernel that its " +
				"image names"}
	case len(unknown) > 0:
		return doctor.Finding{Name: name, Status: doctor.StatusWarn,
			Detail: "unknown because it depends on " + strings.Join(unknown, ", ")}
	}
	return doctor.Finding{Name: name, Status: doctor.StatusOK, Detail: "has what machines need"}
}
