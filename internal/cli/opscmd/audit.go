// Package opscmd has the commands about a server's operation: its audit log, and what tenants used.
package opscmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/terminal"
)

// AuditCmd has the commands below turn audit.
type AuditCmd struct {
	Ls     auditLsCmd     `cmd:"" help:"List who did what to which object."`
	Verify auditVerifyCmd `cmd:"" help:"Verify that no line is missing or changed."`
}

// A Moment is a time on the command line: a time, a date, or a duration before now.
type Moment struct{ time.Time }

// UnmarshalText is called by kong.
func (m *Moment) UnmarshalText(text []byte) error {
	s := string(text)
	if d, err := time.ParseDuration(s); err == nil {
		m.Time = time.Now().Add(-d)
		return nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, s); err == nil {
			m.Time = t
			return nil
		}
	}
	return fmt.Errorf("%.40q is no time: write 24h, 2026-11-24 or 2026-11-24T12:00:00Z", s)
}

// folder returns the folder of the audit log on this machine.
func folder(a *cli.App, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	dir, err := a.Locate()
	return filepath.Join(dir, "audit"), err
}

// none explains that there is no log.
func none(dir string, err error) error {
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	return turnstone.Errorf("audit.read", turnstone.KindNotFound, "the audit log "+dir,
		"does not exist").WithHint("run the command on the controller's machine, with its TURN_HOME " +
		"or --folder")
}

type auditLsCmd struct {
	Tenant string `help:"Only lines of this tenant." placeholder:"NAME"`
	Since  Moment `help:"Only lines from this time on, such as 24h." placeholder:"TIME"`
	Folder string `help:"Folder of the log (default: $TURN_HOME/audit)." type:"path" placeholder:"DIR"`
	JSON   bool   `name:"json" help:"Print one JSON document per line."`
}

// Help is shown below the flags' summary.
func (c *auditLsCmd) Help() string {
	return `The log is in the state directory of the server's controller, so the command works on
its machine. Lines have names, IDs, times and outcomes, and no content. Calls that are
alike and were refused, or only open channels, share a line with their number. A line
that was changed or is missing ends the list with status 5.`
}

// Examples returns command lines for the help.
func (c *auditLsCmd) Examples() []string {
	return []string{"turn audit ls --tenant acme --since 24h"}
}

// Run lists the lines.
func (c *auditLsCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		dir, err := folder(a, c.Folder)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(a.Stdout)
		_, err = audit.Read(dir, "", func(e audit.Entry) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if c.Tenant != "" && e.Tenant != c.Tenant || e.Time.Before(c.Since.Time) {
				return nil
			}
			if c.JSON {
				return a.WriteLine(out, e)
			}
			_, err := terminal.Println(out, line(e))
			return err
		})
		return unproven(errors.Join(none(dir, err), out.Flush()))
	})
}

// unproven gives the error of a damaged log its exit status.
func unproven(err error) error {
	if err != nil && turnstone.KindOf(err) == turnstone.KindIntegrity {
		return cli.Exit(cli.ExitUnproven, err)
	}
	return err
}

// line returns an entry as a line of text.
func line(e audit.Entry) string {
	who := e.Tenant + "/" + e.Subject
	if who == "/" {
		who = "-"
	}
	all := []string{e.Time.Local().Format(time.DateTime), who, orDash(e.Address), e.Method,
		orDash(e.Object), e.Outcome}
	if e.Kind != "" {
		all = append(all, "("+e.Kind+")")
	}
	if e.Count > 0 {
		all = append(all, fmt.Sprintf("%d more", e.Count))
	}
	if e.Fence > 0 {
		all = append(all, fmt.Sprintf("%s, fence %d", e.Controller, e.Fence))
	}
	return strings.Join(all, "  ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type auditVerifyCmd struct {
	Head   string `help:"Also require this digest, noted before, in the log." placeholder:"sha256:…"`
	Folder string `help:"Folder of the log (default: $TURN_HOME/audit)." type:"path" placeholder:"DIR"`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *auditVerifyCmd) Help() string {
	return `Each line names the digest of the line before, so a line that was changed, removed or
added shows. Lines that were removed at the end show only if an earlier digest of the
head is known: note the one that this command prints, on another machine. The command
ends with 5 if the log does not verify.`
}

// Examples returns command lines for the help.
func (c *auditVerifyCmd) Examples() []string {
	return []string{"turn audit verify"}
}

// Run verifies the log.
func (c *auditVerifyCmd) Run(a *cli.App) error {
	return a.Do(func(context.Context) error {
		dir, err := folder(a, c.Folder)
		if err != nil {
			return err
		}
		s, err := audit.Read(dir, c.Head, func(audit.Entry) error { return nil })
		if err != nil {
			return unproven(none(dir, err))
		}
		if c.Head != "" && !s.Known {
			return unproven(turnstone.Errorf("audit.verify", turnstone.KindIntegrity,
				"the audit log "+dir, "has no line with the digest %.80s: lines at the end are missing",
				c.Head).WithHint("compare the log with a copy"))
		}
		return a.Result(s, nil, func(w io.Writer) {
			text := fmt.Sprintf("%d lines in %d files verify", s.Lines, s.Files)
			if s.First > 1 {
				text += fmt.Sprintf("; those before line %d are not here", s.First)
			}
			terminal.Println(w, text)
			if s.Head != "" {
				terminal.Println(w, "head "+s.Head)
			}
		})
	})
}
