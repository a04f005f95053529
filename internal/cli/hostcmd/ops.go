package hostcmd

import "turnstone.dev/turnstone/internal/cli/opscmd"

// AuditCmd shows a server's audit log.
type AuditCmd = opscmd.AuditCmd

// BackupCmd copies the state directory.
type BackupCmd = opscmd.BackupCmd
