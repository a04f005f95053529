//go:build !turnstone_client

package main

import (
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/hostcmd"
	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/doctor/kernelcheck"
	"turnstone.dev/turnstone/internal/terminal"
)

// A doctorReport is the output of turn doctor.
type doctorReport struct {
	Usable   bool                      `json:"usable"` // turns, or machines with the kernel, can run
	Findings []doctor.Finding          `json:"findings"`
	Tiers    []turnstone.Tier          `json:"tiers"`            // of deterministic turns, best first
	Kernel   *kernelcheck.KernelReport `json:"kernel,omitempty"` // with --kernel
}

// Run checks the machine, or a kernel.
func (c *doctorCmd) Run(a *cli.App) error {
	if done, err := hostcmd.Doctor(a, c.localOnly()); done {
		return err
	}
	h, err := a.StateDir()
	if err != nil {
		return err
	}
	ctx, stop := cli.Interruptible(func(string) {}, cli.ExitAborted)
	defer stop()
	report := doctorReport{Tiers: []turnstone.Tier{}}
	if c.Kernel != "" {
		p := a.Progress(c.JSON, 0)
		report.Kernel, err = kernelcheck.Check(ctx, h, kernelcheck.Options{Image: c.Kernel,
			Modules: c.KernelModules, AgentFile: a.Env.AgentFile, QEMU: a.Env.QEMU,
			Progress: p.Preparing})
		p.Close()
		if err != nil {
			return err
		}
		report.Findings = report.Kernel.Findings()
		report.Usable = report.Kernel.Usable()
	} else {
		report.Findings = append([]doctor.Finding{}, doctor.Check(ctx, h, doctorOptions(a))...)
		report.Usable = doctor.Usable(report.Findings)
		report.Tiers = doctor.Tiers(report.Findings)
	}
	err = a.Result(report, nil, func(w io.Writer) { c.print(w, report.Findings) })
	if err == nil && !report.Usable {
		err = cli.Exit(cli.ExitFailed, nil)
	}
	return err
}

func doctorOptions(a *cli.App) doctor.Options {
	o := a.Env
	return doctor.Options{Kernel: o.Kernel, KernelModules: o.KernelModules, Runsc: o.Runsc,
		QEMU: o.QEMU, Firecracker: o.Firecracker, Jailer: o.Jailer, Substrate: o.Substrate}
}

// print lists the findings, or with --fix the commands that fix them.
func (c *doctorCmd) print(w io.Writer, found []doctor.Finding) {
	var rows [][]any
	for _, f := range found {
		rows = append(rows, []any{f.Status, f.Name, f.Detail})
		if f.Fix == "" {
			continue
		}
		rows = append(rows, []any{"", "", "fix: " + f.Fix})
		if c.Fix {
			terminal.Println(w, f.Fix)
		}
	}
	if !c.Fix {
		terminal.Table(w, "", rows, func(row []any) []any { return row })
	}
}
