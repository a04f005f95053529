package rights

import (
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/wire"
)

// A row is what a command needs of each token. Sessions that a reference leads to are checked where
// the database finds them, with AllowSession; names says those that the command would give, and the
// templates that it names.
type row struct {
	all []auth.Scope // each of them
	any []auth.Scope // and, unless it is empty, one of them

	more   func(params any) []auth.Scope // further scopes, by the parameters
	names  func(params any) about
	ticket func(params any) string // the ticket whose session and template are checked
}

func needs(all ...auth.Scope) row { return row{all: all} }

// table has all commands of a node's channel. A command without a row is refused, and a test fails
// for it.
var table = map[string]row{
	"Turn.start": {all: []auth.Scope{auth.TurnsRun}, ticket: func(p any) string {
		return p.(*wire.TurnStartParams).Ticket
	}},
	"Turn.attach": {any: []auth.Scope{auth.TurnsRun, auth.TurnsRead}, ticket: func(p any) string {
		return p.(*wire.TurnAttachParams).Ticket
	}},
	"Turn.cancel": {any: []auth.Scope{auth.TurnsRun, auth.TurnsCancel}, ticket: func(p any) string {
		return p.(*wire.TurnCancelParams).Ticket
	}},

	"Session.list":      needs(auth.SessionsRead),
	"Session.get":       needs(auth.SessionsRead),
	"Session.log":       needs(auth.SessionsRead),
	"Session.expand":    needs(auth.SessionsRead),
	"Session.current":   needs(auth.SessionsRead),
	"Session.show":      needs(auth.SessionsRead),
	"Session.receipt":   needs(auth.SessionsRead),
	"Session.trace":     needs(auth.SessionsRead),
	"Session.listFiles": needs(auth.SessionsRead),
	"Session.readFile":  needs(auth.SessionsRead),
	"Session.packFiles": needs(auth.SessionsRead),
	"Session.diff":      needs(auth.SessionsRead),
	"Session.compare":   needs(auth.SessionsRead),
	"Session.prepare":   needs(auth.SessionsRead),
	"Session.export":    needs(auth.SessionsRead),
	"Session.verify":    needs(auth.SessionsRead),
	"Session.heads":     needs(auth.SessionsRead),
	"Session.owners":    needs(auth.SessionsRead),
	"Session.admit":     needs(auth.SessionsRead), // the owner's signature counts

	"Session.fork":     needs(auth.SessionsWrite),
	"Session.forkLive": needs(auth.SessionsWrite, auth.TurnsRun),
	"Session.tag":      needs(auth.SessionsWrite),
	"Session.untag":    needs(auth.SessionsWrite),
	"Session.rename": {all: []auth.Scope{auth.SessionsWrite}, names: func(p any) about {
		return about{session: p.(*wire.SessionRenameParams).Name}
	}},
	"Session.removeBranch": needs(auth.SessionsWrite),
	"Session.merge":        needs(auth.SessionsWrite),
	"Session.import":       needs(auth.SessionsWrite),
	"Session.allow":        needs(auth.SessionsWrite),
	"Session.signTurn":     needs(auth.SessionsWrite),
	"Session.remove":       needs(auth.SessionsDelete),
	"Session.seal":         needs(auth.SessionsWrite),
	// The key opens nothing that the other commands would not refuse.
	"Session.unlock": {any: []auth.Scope{auth.SessionsRead, auth.SessionsWrite, auth.SessionsDelete,
		auth.TurnsRun, auth.TurnsRead, auth.TurnsCancel, auth.SandboxesControl,
		auth.SandboxesDelete, auth.TemplatesRead, auth.TemplatesWrite}},

	// As the control calls that keep the work of a sandbox as a turn, or end a sandbox.
	"Session.commitSandbox":  needs(auth.SandboxesControl),
	"Session.discardSandbox": needs(auth.SandboxesDelete),

	"Session.replay": needs(auth.SessionsRead, auth.TurnsRun),
	"Session.bisect": needs(auth.SessionsRead, auth.TurnsRun),
	"Session.frozen": needs(auth.SessionsRead, auth.TurnsRun),
	"Session.replayRange": {all: []auth.Scope{auth.SessionsRead, auth.TurnsRun},
		more: func(p any) []auth.Scope {
			if p.(*wire.SessionReplayRangeParams).OnHead {
				return []auth.Scope{auth.SessionsWrite}
			}
			return nil
		}},

	// The operator's own: their handlers refuse everybody else.
	"Session.gc":         needs(auth.SessionsDelete),
	"Session.fsck":       needs(auth.SessionsRead),
	"Session.usage":      needs(auth.SessionsRead),
	"Session.homes":      needs(auth.SessionsRead),
	"Session.hasHome":    needs(auth.SessionsRead),
	"Session.removeHome": needs(auth.SessionsDelete),
	"Template.prune":     needs(auth.TemplatesWrite),

	"Template.list": needs(auth.TemplatesRead),
	// The name of a spec that is sent, and its base, are checked where the spec is read.
	"Template.build": {all: []auth.Scope{auth.TemplatesWrite}, names: func(p any) about {
		b := p.(*wire.TemplateBuildParams)
		if b.Spec != 0 {
			return about{}
		}
		return about{template: b.Name}
	}},
	"Template.remove": {all: []auth.Scope{auth.TemplatesWrite}, names: func(p any) about {
		return about{template: p.(*wire.TemplateRemoveParams).Name}
	}},
}
