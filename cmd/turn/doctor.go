package main

import (
	"errors"
	"text/tabwriter"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/doctor/kernelcheck"
	"turnstone.dev/turnstone/internal/terminal"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON." xor:"form"`
	Fix  bool `help:"Print only the commands that fix the findings." xor:"form,what"`

	Kernel        string `help:"Boot this guest kernel and list missing features." placeholder:"FILE" type:"path" xor:"what"`
	KernelModules string `help:"Use this folder lib/modules/VERSION." placeholder:"DIR" type:"path"`
}

// Validate is called by kong.
func (c *doctorCmd) Validate() error {
	if c.KernelModules != "" && c.Kernel == "" {
		return errors.New("--kernel-modules: give --kernel too")
	}
	return nil
}

// Run checks the machine, or a kernel.
func (c *doctorCmd) Run(a *cli.App) error {
	h, err := a.StateDir()
	if err != nil {
		return err
	}
	ctx, stop := cli.Interruptible(func(string) {}, cli.ExitAborted)
	defer stop()
	report := doctorReport{}
	if c.Kernel != "" {
		p := a.Progress(c.JSON, 0)
		report.Kernel, err = kernelcheck.Check(ctx, h, kernelcheck.Options{Image: c.Kernel,
			Modules: c.KernelModules, AgentFile: a.Env.AgentFile, Progress: p.Preparing})
		p.Close()
		if err != nil {
			return err
		}
		report.Findings = report.Kernel.Findings()
		report.Usable = report.Kernel.Usable()
	} else {
		report.Findings = append([]doctor.Finding{}, doctor.Check(ctx, h, doctorOptions(a))...)
		report.Usable = doctor.Usable(report.Findings)
	}
	found := report.Findings
	switch {
	case c.JSON:
		err = a.WriteJSON(report)
	case c.Fix:
		for _, f := range found {
			if f.Fix != "" && err == nil {
				_, err = terminal.Println(a.Stdout, f.Fix)
			}
		}
	default:
		err = printFindings(a, found)
	}
	if err != nil {
		return err
	}
	if !report.Usable {
		return cli.Exit(cli.ExitFailed, nil)
	}
	return nil
}

func doctorOptions(a *cli.App) doctor.Options {
	o := a.Env
	return doctor.Options{Kernel: o.Kernel, KernelModules: o.KernelModules, Runsc: o.Runsc, Firecracker: o.Firecracker,
		Jailer: o.Jailer, Substrate: o.Substrate}
}

func printFindings(a *cli.App, found []doctor.Finding) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, f := range found {
		terminal.Printf(w, "%s\t%s\t%s\n", f.Status, f.Name, terminal.Printable(f.Detail))
		if f.Fix != "" {
			terminal.Printf(w, "\t\tfix: %s\n", f.Fix)
		}
	}
	return w.Flush()
}
