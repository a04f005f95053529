package opscmd

import (
	"fmt"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/terminal"
)

// BackupCmd copies the state directory.
type BackupCmd struct {
	To     string `arg:"" name:"dir" help:"Folder of the backup: empty, or of an earlier one." type:"path"`
	Keys   string `help:"Copy the private keys, to this other folder." type:"path" placeholder:"DIR"`
	Dumped bool   `help:"Say that PostgreSQL was dumped before."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *BackupCmd) Help() string {
	return `Copies sessions, their data, templates, settings, and what a server keeps, with all
tenants. Turns may run at the same time. A later backup to the same folder copies what is
new, and removes what is no longer here. To restore, copy the folder to an empty state
directory, and the folder of the keys, too. Sandboxes and paused machines are not copied.

Sessions with TURN_DATABASE and records with records.database are in PostgreSQL, and stay
there: dump the database first with pg_dump, then copy the rest with --dumped.`
}

// Examples returns command lines for the help.
func (c *BackupCmd) Examples() []string {
	return []string{"turn backup /backup/turnstone --keys /safe/turnstone-keys",
		"pg_dump -Fc -f /backup/turn.dump $TURN_DATABASE && turn backup /backup/turnstone --dumped"}
}

func printBackup(w io.Writer, r *turnstone.BackupReport) {
	terminal.Println(w, fmt.Sprintf("%d files (%s) of %d state directories; %d were copied (%s), %d removed",
		r.Files, turnstone.Bytes(r.Bytes).Human(), r.Directories, r.Copied, turnstone.Bytes(r.CopiedBytes).Human(),
		r.Removed))
	if r.Objects != "" {
		terminal.Println(w, "the objects stay in "+r.Objects+": back up the bucket, too")
	}
	if r.Keys == "" {
		terminal.Println(w, "the private keys are not copied: --keys DIR copies them elsewhere")
	}
	if len(r.Left) > 0 {
		terminal.Println(w, "not copied: "+strings.Join(r.Left, ", "))
	}
}
