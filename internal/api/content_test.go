package api

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// noContent says why each field that could carry text is no content of a turn: no document, output,
// receipt, name of a file in a turn, or secret. Gateways and controllers see these fields. A field
// without a row is a field that nobody has thought about.
var noContent = map[string][]string{
	"an ID that the server made; its rule permits no other text": {
		"CancelTurnRequest.ticket_id", "ConnectSandboxRequest.sandbox_id",
		"ConnectTurnRequest.ticket_id", "CreateSandboxRequest.snapshot_id",
		"DeleteSandboxRequest.sandbox_id", "DeleteSnapshotRequest.snapshot_id",
		"ExposePortRequest.sandbox_id", "ForkSandboxRequest.sandbox_id",
		"GetSandboxRequest.sandbox_id", "GetTurnRequest.ticket_id",
		"ListSnapshotsRequest.sandbox_id", "LocateChannelRequest.sandbox_id",
		"NodeServiceCreateSandboxRequest.sandbox_id",
		"NodeServiceCreateSandboxRequest.session_id",
		"NodeServiceCreateSessionRequest.session_id",
		"NodeServiceConnectSessionRequest.session_id",
		"NodeServiceDeleteSessionRequest.session_id",
		"NodeServiceRenameSessionRequest.session_id",
		"NodeServiceForkSandboxRequest.sandbox_ids",
		"NodeServiceReserveTurnRequest.session_id", "NodeServiceReserveTurnRequest.ticket_id",
		"NodeServiceSnapshotSandboxRequest.snapshot_id", "PauseSandboxRequest.sandbox_id",
		"Principal.sandbox_id", "ResumeSandboxRequest.sandbox_id", "SandboxFilter.sandbox_ids",
		"SetSandboxTimeoutRequest.sandbox_id", "SnapshotSandboxRequest.sandbox_id",
		"TurnFilter.ticket_ids",
	},
	"an ID that the server made, in an answer": {
		"Sandbox.parent_id", "Sandbox.sandbox_id", "Sandbox.snapshot_id", "Session.session_id",
		"Snapshot.sandbox_id", "Snapshot.snapshot_id", "Turn.session_id", "Turn.ticket_id",
		"Turn.turn_id",
	},
	"the name of a session, which servers may know": {
		"ConnectSessionRequest.session", "CreateSandboxRequest.context_id",
		"CreateSessionRequest.name", "DeleteSessionRequest.session", "GetSessionRequest.session",
		"GetUsageRequest.session",
		"RenameSessionRequest.new_name", "RenameSessionRequest.session", "Sandbox.context_id",
		"SandboxFilter.context_id", "Session.name", "SessionFilter.name_prefix",
		"StartTurnRequest.session", "Turn.session", "TurnFilter.session",
	},
	"the name of a session's branch, which servers may know as they know the session's": {
		"CreateSandboxRequest.branch",
	},
	"where and as whom a template's commands run, or as the caller's request says; not of a session's " +
		"sandbox, whose commands choose": {"Sandbox.user", "Sandbox.workdir"},
	"the name of a pool, which servers may know": {"SetPoolRequest.name"},
	"the name of a template or an image, which servers may know": {
		"BuildTemplateRequest.template", "CreateSandboxRequest.image",
		"CreateSandboxRequest.template", "DeleteTemplateRequest.template",
		"GetTemplateRequest.template", "Sandbox.template", "SandboxFilter.template",
		"Snapshot.template", "StartTurnRequest.template", "Template.name",
		"SetPoolRequest.template", "SetPoolRequest.image",
		"TemplateFilter.name_prefix",
	},
	"the digest of a template's spec, which is no part of a turn": {
		"Sandbox.template_digest", "Template.digest",
	},
	"the display name of a sandbox, which servers may know": {
		"CreateSandboxRequest.name", "ForkSandboxRequest.names", "Sandbox.name",
		"SandboxFilter.name",
	},
	"the caller declares it public; what is secret goes through the channel": {
		"CreateSandboxRequest.EnvEntry.key", "CreateSandboxRequest.EnvEntry.value",
		"CreateSandboxRequest.MetadataEntry.key", "CreateSandboxRequest.MetadataEntry.value",
		"Sandbox.MetadataEntry.key", "Sandbox.MetadataEntry.value",
		"SandboxFilter.MetadataEntry.key", "SandboxFilter.MetadataEntry.value",
	},
	"which object of another system a sandbox is of, by its names and ID; its rule permits a path of names": {
		"CreateSandboxRequest.managed_by", "Sandbox.managed_by", "SandboxFilter.managed_by",
	},
	"the folder where commands begin, a setting of the sandbox; a command's own goes through the " +
		"channel": {"CreateSandboxRequest.cwd"},
	"a rule of the network policy, which the operator's configuration bounds": {
		"Network.allow", "Network.deny",
	},
	"chosen by the caller to tell requests apart; its rule permits 64 characters of an ID": {
		"CreateSandboxRequest.idempotency_key", "CreateSessionRequest.idempotency_key",
		"ForkSandboxRequest.idempotency_key", "SnapshotSandboxRequest.idempotency_key",
		"StartTurnRequest.idempotency_key",
	},
	"a public key": {
		"Channel.server_public_key", "ChannelClient.client_public_key",
		"CreateSandboxRequest.owner", "CreateSessionRequest.owner", "Node.key",
	},
	"a token of the control API, in the answer to who asked for it": {"CreateTokenResponse.secret"},
	"a token's record: its ID, its name that the caller chose, and what it grants": {
		"CreateTokenRequest.name", "CreateTokenRequest.scopes", "CreateTokenRequest.sessions",
		"CreateTokenRequest.subject", "CreateTokenRequest.templates", "CreateTokenRequest.tenant",
		"ListTokensResponse.next_page_token", "RevokeTokenRequest.token_id", "Token.name",
		"Token.scopes", "Token.subject", "Token.tenant", "Token.token_id",
	},
	"public keys of tokens, and IDs of revoked tokens":           {"WatchAuthorityResponse.part"},
	"random, and of a fixed length":                              {"ChannelClient.nonce"},
	"a Noise message of a fixed length, whose payload is a time": {"KeyProof.message"},
	"a signed statement about keys and digests": {
		"Channel.attestation", "Channel.certificate", "ChannelClient.grant",
		"Error.introduction", "Error.certificate", "Node.certificate",
	},
	"a path of the server, made of an ID or a node's name": {"Channel.path"},
	"the address of a port, made of an ID":                 {"ExposePortResponse.url"},
	"a token of the control API, which opens no channel":   {"CreateSandboxResponse.auth_token"},
	"who calls, from the token": {
		"OwnedSandbox.tenant", "WarmSandboxes.tenant", "PoolShare.tenant", "WarmKind.tenant", "OwnedSession.tenant", "OwnedSnapshot.tenant", "OwnedTurn.tenant",
		"Principal.issuer", "Principal.scopes", "Principal.sessions", "Principal.subject",
		"Principal.templates", "Principal.tenant", "Principal.token_id",
	},
	"made by the server of the position in a list": {
		"ListSandboxesResponse.next_page_token", "ListSessionsResponse.next_page_token",
		"ListSnapshotsResponse.next_page_token", "ListTemplatesResponse.next_page_token",
		"ListTurnsResponse.next_page_token", "Page.token",
	},
	"a property of a node, which its operator chose": {
		"ConnectNodeRequest.node", "ConnectNodeResponse.node", "CreateSandboxRequest.substrate", "RemoveNodeRequest.name",
		"CreateSandboxRequest.avoid_nodes", "CreateSessionRequest.avoid_nodes", "StartTurnRequest.avoid_nodes",
		"SetPoolRequest.avoid_nodes",
		"KeyProof.node",
		"LocateChannelRequest.node",
		"LocateChannelResponse.address", "LocateChannelResponse.node", "Node.name", "Node.substrates", "Node.version", "Sandbox.version", "Snapshot.version",
		"WarmSandboxes.template", "PoolShare.template", "WarmKind.template", "RegisterNodeRequest.address", "Sandbox.node", "Sandbox.substrate", "Session.node", "Snapshot.substrate", "Turn.node",
	},
	"one of a few words of a node": {"Node.store_away", "Phase.name"},
	"a list of states":             {"SandboxFilter.states", "TemplateFilter.states", "TurnFilter.states"},
	"about a control call, whose fields are those of this table; what fails in a turn is said in " +
		"the channel": {
		"Error.cause", "Error.hint", "Error.op", "Error.reason",
		"Error.subject",
	},
	"about a rule of proto/, without the value": {
		"Violation.field", "Violation.message", "Violation.rule",
	},
}

// allFields calls each for all fields of the API, entries of maps included.
func allFields(t *testing.T, each func(protoreflect.FieldDescriptor)) {
	t.Helper()
	var walk func(protoreflect.MessageDescriptors)
	walk = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			for j := range all.Get(i).Fields().Len() {
				each(all.Get(i).Fields().Get(j))
			}
			walk(all.Get(i).Messages())
		}
	}
	files := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("turnstone.v1",
		func(f protoreflect.FileDescriptor) bool {
			files++
			walk(f.Messages())
			for i := range f.Extensions().Len() {
				of := f.Extensions().Get(i).ContainingMessage().FullName()
				if of != "google.protobuf.MethodOptions" {
					t.Errorf("%s extends %s", f.Path(), of)
				}
			}
			return true
		})
	if files < 8 {
		t.Fatalf("there are %d files", files)
	}
}

// mayCarryText reports whether a field could carry a text: as a string, as bytes, or as numbers.
func mayCarryText(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind ||
		f.IsList() && f.Message() == nil
}

// TestNoContent: no message has a field for what a turn says.
func TestNoContent(t *testing.T) {
	const in = "turnstone.v1."
	why := map[string]string{}
	for reason, fields := range noContent {
		for _, f := range fields {
			if why[f] != "" {
				t.Errorf("%s has two rows", f)
			}
			why[f] = reason
		}
	}
	allFields(t, func(f protoreflect.FieldDescriptor) {
		name := strings.TrimPrefix(string(f.FullName()), in)
		if m := f.Message(); m != nil && !strings.HasPrefix(string(m.FullName()), in) &&
			!slices.Contains([]string{"google.protobuf.Timestamp", "google.protobuf.Duration"},
				string(m.FullName())) {
			t.Errorf("%s is a %s, which could carry anything", name, m.FullName())
		}
		if !mayCarryText(f) {
			return
		}
		if why[name] == "" {
			t.Errorf("%s has no row in noContent: say why it is no content, or remove it", name)
		}
		delete(why, name)
	})
	for name := range why {
		t.Errorf("noContent has a row for %s, which no message has", name)
	}
}

// TestNoContentByName: no field is named like something that a turn says.
func TestNoContentByName(t *testing.T) {
	bad := []string{"document", "output", "stdout", "stderr", "receipt", "file", "secret_value",
		"command", "argv", "script", "title", "body", "content", "password", "stdin"}
	allFields(t, func(f protoreflect.FieldDescriptor) {
		for _, word := range strings.Split(string(f.Name()), "_") {
			if slices.Contains(bad, word) || slices.Contains(bad, strings.TrimSuffix(word, "s")) {
				t.Errorf("%s reads like content", f.FullName())
			}
		}
	})
}
