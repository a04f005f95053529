package main

import (
	"text/tabwriter"

	"turnstone.dev/turnstone/doctor"
	"turnstone.dev/turnstone/home"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON." xor:"form"`
	Fix  bool `help:"Print only the commands that mend what was found, one on each line." xor:"form"`
}

// Run looks at the machine.
func (c *doctorCmd) Run(a *app) error {
	h, err := home.Open()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(func(string) {}, exitAborted)
	defer stop()
	found := doctor.Check(ctx, h)
	switch {
	case c.JSON:
		err = a.writeJSON(doctorReport{doctor.Usable(found), append([]doctor.Finding{}, found...)})
	case c.Fix:
		for _, f := range found {
			if f.Fix != "" && err == nil {
				_, err = putln(a.stdout, f.Fix)
			}
		}
	default:
		err = printFindings(a, found)
	}
	if err != nil {
		return err
	}
	if !doctor.Usable(found) {
		return &exitError{exitFailed, nil}
	}
	return nil
}

func printFindings(a *app, found []doctor.Finding) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, f := range found {
		putf(w, "%s\t%s\t%s\n", f.Status, f.Name, printable(f.Detail))
		if f.Fix != "" {
			putf(w, "\t\tfix: %s\n", f.Fix)
		}
	}
	return w.Flush()
}
