package mcpdoor

import "strings"

// instructions are what a client tells its model about all tools.
const instructions = `Turnstone runs work in Linux sandboxes and keeps every result. A turn is one run of a ` +
	`markdown document; a session is a tree of turns, and each turn begins with the files that its parent left. ` +
	`This connection has a session and a sandbox of its own, made when first needed; session and branch ` +
	`(default: main) select others. A turn is named @3, @BRANCH, SESSION@3 or t_…. When the ` +
	`connection ends, the sandbox's work is kept as a turn.`

// instructionsOfParties are instructions for clients that have no connection.
const instructionsOfParties = `Turnstone runs work in Linux sandboxes and keeps every result. A turn is one run of a ` +
	`markdown document; a session is a tree of turns, and each turn begins with the files that its parent left. ` +
	`A call of run_turn, exec or a file tool that names no session begins one, with a sandbox when first needed. Its ` +
	`result has the session: name it in later calls to go on there. branch (default: main) selects another branch. ` +
	`A turn is named @3, @BRANCH, SESSION@3 or t_…. A sandbox that is silent ends, and its work is kept as a turn.`

// object returns the schema of an object whose required properties end with "!". Each property is
// "NAME TYPE" or "NAME TYPE DESCRIPTION"; TYPE is a type of JSON Schema, or "[]" and one.
func object(properties ...string) string {
	var required, all []string
	for _, p := range properties {
		words := strings.SplitN(p, " ", 3)
		name, must := strings.CutSuffix(words[0], "!")
		if must {
			required = append(required, `"`+name+`"`)
		}
		schema := `"type":"` + words[1] + `"`
		if item, list := strings.CutPrefix(words[1], "[]"); list {
			schema = `"type":"array","items":{"type":"` + item + `"}`
		}
		if len(words) == 3 {
			schema += `,"description":"` + words[2] + `"`
		}
		all = append(all, `"`+name+`":{`+schema+`}`)
	}
	text := `{"type":"object","properties":{` + strings.Join(all, ",") + `}`
	if required != nil {
		text += `,"required":[` + strings.Join(required, ",") + `]`
	}
	return text + "}"
}

// addTools adds all tools. Their texts are for a model that has never heard of turns, and count
// against its memory in every conversation: a test bounds them.
func (d *Door) addTools() {
	const branch = "branch string"
	session := "session string"
	if d.o.Party != nil { // not all clients show the instructions to their model
		session += " of an earlier result; without it a new one begins"
	}
	add(d, tool{name: "run_turn", description: "Run the bash steps of a markdown document in a fresh " +
		"sandbox; returns the receipt: the document with each step's result. A step is a fenced " +
		"block ```bash name=NAME. Files, exported variables and the directory carry over to the " +
		"next turn. A failing step ends the turn.",
		in: object("document! string markdown", session, branch),
		out: object("turn! string", "session string", "number integer", "branch string",
			"result! string passed, failed, timeout or error", "receipt! string",
			"receipt_uri string", "error string", "hint string")}, run)
	add(d, tool{name: "exec", description: "Run a bash command in the session's sandbox, which keeps " +
		"files and processes between calls. Begins in /workspace.",
		in: object("command! string", "cwd string", "stdin string",
			"timeout number seconds, default 120",
			"image string of a new session, such as python or alpine:3", session, branch),
		out: object("exit_code! integer", "stdout! string", "stderr! string",
			"stdout_base64 string if it is not UTF-8", "stderr_base64 string",
			"stdout_uri string all of a long output", "stderr_uri string", "timed_out boolean",
			"note string", "session string")}, exec)
	add(d, tool{name: "read_file", description: "Read a file of the sandbox.", reads: true,
		in: object("path! string", "offset integer", "limit integer bytes, default 16384", session,
			branch),
		out: object("text string", "base64 string", "size! integer",
			"next_offset integer more follows", "session string")}, readFile)
	add(d, tool{name: "write_file", description: "Write a whole file of the sandbox, with its folders. " +
		"Give text or base64.",
		in:  object("path! string", "text string", "base64 string", session, branch),
		out: object("path! string", "size! integer", "session string")}, writeFile)
	add(d, tool{name: "list_files", description: "List a folder of the sandbox.", reads: true,
		in: object("path string", "after string continue after this name", session, branch),
		out: object("entries! []object name, type, size", "more! boolean",
			"session string")}, listFiles)
	add(d, tool{name: "snapshot", description: "Keep the sandbox's work as a turn, to fork, diff or " +
		"return to. The sandbox continues.", adds: true,
		in: object("session string", branch),
		out: object("changed! boolean false: nothing new", "turn string", "session string",
			"number integer", "branch string")}, snapshot)
	d.addHistoryTools()
}

func (d *Door) addHistoryTools() {
	const session = "session string"
	add(d, tool{name: "fork", description: "Make a branch that begins at a turn, to try something " +
		"else from the same files. Pass the branch to other tools.", adds: true,
		in:  object("branch! string name of the new branch", "turn string default: newest", session),
		out: object("branch! string", "turn! string")}, fork)
	add(d, tool{name: "diff", description: "Compare the files of two turns; without to, a turn with " +
		"its parent.", reads: true,
		in: object("from string", "to string", "patch boolean", session),
		out: object("files! []object path, status A M D R T", "more integer", "env! []string", "patch string",
			"patch_base64 string", "patch_uri string", "note string")}, diff)
	add(d, tool{name: "merge", description: "Merge a branch or turn into a branch, three-way. With " +
		"conflicts nothing changes, unless prefer decides.",
		in: object("from! string", "into string default: main", "prefer string ours or theirs",
			"dry_run boolean", session),
		out: object("outcome! string merged, fast-forward, up-to-date or conflicts", "turn string",
			"number integer", "branch string", "conflicts! []object path, kind", "more integer")}, merge)
	add(d, tool{name: "replay", description: "Run a turn again from the same start and report what " +
		"differs.", adds: true,
		in:  object("turn string", session),
		out: object("same! boolean", "differences! []string", "more integer")}, replay)
	add(d, tool{name: "log", description: "List the turns of a session, newest first.", reads: true,
		in: object("turn string only this turn and its ancestors", "limit integer", session),
		out: object("session! string", "turns! []object turn, number, branch, title, result",
			"branches! object newest turn of each")}, log)
	add(d, tool{name: "compare", description: "Lay the results, steps and files of 2 to 10 turns side " +
		"by side.", reads: true,
		in: object("turns! []string", session),
		out: object("turns! []object turn, number, branch, result, duration_ms, steps",
			"files! object changes by path", "more integer")}, compare)
	add(d, tool{name: "verify", description: "Verify the signatures of a turn and its ancestors, and " +
		"their stored data.", reads: true,
		in: object("turn string", session),
		out: object("ok! boolean", "signed! boolean", "turns! integer", "problems! []string",
			"more integer")}, verify)
}
