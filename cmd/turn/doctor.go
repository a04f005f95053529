package main

import "errors"

type doctorCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON." xor:"form"`
	Fix  bool `help:"Print only the commands that fix the findings." xor:"form,what"`

	Kernel        string `help:"Boot this guest kernel and list missing features." placeholder:"FILE" type:"path" xor:"what"`
	KernelModules string `help:"Use this folder lib/modules/VERSION." placeholder:"DIR" type:"path"`
}

// Validate is called by kong.
func (c *doctorCmd) Validate() error {
	if c.KernelModules != "" && c.Kernel == "" {
		return errors.New("--kernel-modules requires --kernel")
	}
	return nil
}
