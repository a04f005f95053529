package main

import "errors"

type doctorCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON." xor:"form"`
	Fix  bool `help:"Print only the commands that fix the findings." xor:"form,what"`

	Kernel        string `help:"Boot this guest kernel and list missing features." placeholder:"FILE" type:"path" xor:"what"`
	KernelModules string `help:"Use this folder lib/modules/VERSION." placeholder:"DIR" type:"path"`
}

// Help is shown below the flags' summary.
func (c *doctorCmd) Help() string {
	return `With a host selected, the host is checked: whether it answers, how long the token
is valid and what it grants, the clocks, and for each node its key, channel and version.`
}

// localOnly returns the flag that is about this machine alone, or "".
func (c *doctorCmd) localOnly() string {
	switch {
	case c.Kernel != "":
		return "--kernel"
	case c.Fix:
		return "--fix"
	}
	return ""
}

// Validate is called by kong.
func (c *doctorCmd) Validate() error {
	if c.KernelModules != "" && c.Kernel == "" {
		return errors.New("--kernel-modules requires --kernel")
	}
	return nil
}
