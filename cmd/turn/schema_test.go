package main

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/domaincmd"
	"turnstone.dev/turnstone/internal/cli/hostcmd"
	"turnstone.dev/turnstone/internal/cli/proofcmd"
	"turnstone.dev/turnstone/internal/cli/sandboxcmd"
	"turnstone.dev/turnstone/internal/cli/topcmd"
	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/doctor/kernelcheck"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/sandboxes"
)

var update = flag.Bool("update", false, "write docs/schemas")

// printed are the types that commands print with --json. "ls" and "sandbox fork" print one on each
// line.
var printed = map[string]reflect.Type{
	"run": reflect.TypeFor[turnstone.TurnReport](), "check": reflect.TypeFor[checkReport](),
	"init":         reflect.TypeFor[initReport](),
	"bisect":       reflect.TypeFor[turnstone.BisectReport](),
	"replay range": reflect.TypeFor[turnstone.RangeReport](),
	"run frozen":   reflect.TypeFor[proofcmd.FrozenReport](),
	"replay":       reflect.TypeFor[turnstone.ReplayReport](),
	"log":          reflect.TypeFor[turnstone.Graph](),
	"log heads":    reflect.TypeFor[headsReport](), "show": reflect.TypeFor[turnReport](),
	"diff": reflect.TypeFor[turnstone.StateDiff](),
	"fork": reflect.TypeFor[turnstone.Branch](), "merge": reflect.TypeFor[turnstone.MergeReport](),
	"ls": reflect.TypeFor[turnstone.FileInfo](),
	"cp": reflect.TypeFor[copyReport](), "resume": reflect.TypeFor[sandboxes.Info](),
	"session ls":       reflect.TypeFor[sessionsReport](),
	"session show":     reflect.TypeFor[turnstone.Graph](),
	"session rm":       reflect.TypeFor[cli.RemovedReport](),
	"session seal":     reflect.TypeFor[turnstone.SealReport](),
	"session rename":   reflect.TypeFor[turnstone.Session](),
	"session tag":      reflect.TypeFor[turnstone.Tag](),
	"session untag":    reflect.TypeFor[cli.RemovedReport](),
	"session export":   reflect.TypeFor[turnstone.ExportReport](),
	"session import":   reflect.TypeFor[turnstone.ImportReport](),
	"host add":         reflect.TypeFor[hostcmd.HostReport](),
	"host ls":          reflect.TypeFor[hostcmd.HostsReport](),
	"host show":        reflect.TypeFor[hostcmd.HostReport](),
	"host seal":        reflect.TypeFor[hostcmd.HostReport](),
	"host rm":          reflect.TypeFor[cli.RemovedReport](),
	"host root make":   reflect.TypeFor[hostcmd.RootReport](),
	"host root show":   reflect.TypeFor[hostcmd.RootReport](),
	"host root sign":   reflect.TypeFor[hostcmd.SignedReport](),
	"host root revoke": reflect.TypeFor[hostcmd.RootReport](),
	"host root rotate": reflect.TypeFor[hostcmd.RootReport](),
	"node ls":          reflect.TypeFor[hostcmd.NodesReport](),
	"node rm":          reflect.TypeFor[hostcmd.RemovedNodes](),
	"token create":     reflect.TypeFor[hostcmd.CreatedToken](),
	"token ls":         reflect.TypeFor[hostcmd.TokensReport](),
	"token revoke":     reflect.TypeFor[cli.RemovedReport](),
	"usage":            reflect.TypeFor[turnstone.UsageReport](),
	"audit ls":         reflect.TypeFor[audit.Entry](),
	"audit verify":     reflect.TypeFor[audit.Summary](),
	"backup":           reflect.TypeFor[turnstone.BackupReport](),
	"gc":               reflect.TypeFor[turnstone.GCReport](),
	"fsck":             reflect.TypeFor[turnstone.FsckReport](),
	"du":               reflect.TypeFor[turnstone.Usage](),
	"sandbox create":   reflect.TypeFor[sandboxes.Info](),
	"sandbox commit":   reflect.TypeFor[sandboxcmd.CommittedReport](),
	"sandbox ls":       reflect.TypeFor[sandboxcmd.SandboxesReport](),
	"sandbox ps":       reflect.TypeFor[sandboxcmd.ProcessesReport](),
	"exec":             reflect.TypeFor[cli.CommandReport](),
	"sandbox exec":     reflect.TypeFor[cli.CommandReport](),
	"sandbox stop":     reflect.TypeFor[sandboxcmd.StoppedReport](),
	"sandbox rm":       reflect.TypeFor[cli.RemovedReport](),
	"sandbox fork":     reflect.TypeFor[sandboxes.Info](),
	"template ls":      reflect.TypeFor[templatesReport](),
	"template build":   reflect.TypeFor[turnstone.Template](),
	"template pull":    reflect.TypeFor[turnstone.Template](),
	"template push":    reflect.TypeFor[turnstone.TemplatePushed](),
	"template tag":     reflect.TypeFor[template.Entry](),
	"template show":    reflect.TypeFor[template.Details](),
	"template prune":   reflect.TypeFor[turnstone.TemplatePruned](),
	"template rm":      reflect.TypeFor[templatesRemoved](),
	"home ls":          reflect.TypeFor[homesReport](),
	"home rm":          reflect.TypeFor[cli.RemovedReport](),
	"compare":          reflect.TypeFor[turnstone.CompareReport](),
	"verify":           reflect.TypeFor[turnstone.VerifyReport](),
	"key ls":           reflect.TypeFor[proofcmd.KeysReport](),
	"domain ls":        reflect.TypeFor[domaincmd.DomainsReport](),
	"domain check":     reflect.TypeFor[domaincmd.CheckReport](),
	"domain rotate":    reflect.TypeFor[domaincmd.WrappedReport](),
	"domain rewrap":    reflect.TypeFor[domaincmd.WrappedReport](),
	"domain recover":   reflect.TypeFor[domaincmd.WrappedReport](),
	"hash":             reflect.TypeFor[proofcmd.HashReport](),
	"doctor":           reflect.TypeFor[doctorReport](),
	"top":              reflect.TypeFor[topcmd.Report](),
	"version":          reflect.TypeFor[versionReport](),
	"":                 reflect.TypeFor[cli.ErrorReport](),
}

// modes are the flags with which a command prints another type than without them.
var modes = map[string]string{"run frozen": "run --frozen", "log heads": "log --heads",
	"replay range": "replay --on-head"}

// words are the types whose values are a fixed set of words.
var words = map[reflect.Type][]string{
	reflect.TypeFor[turnstone.Kind](): wordsOf(turnstone.KindInvalid,
		turnstone.KindNotFound, turnstone.KindUnavailable, turnstone.KindExhausted,
		turnstone.KindCanceled, turnstone.KindTimeout, turnstone.KindIntegrity, turnstone.KindDead,
		turnstone.KindDenied, turnstone.KindInternal),
	reflect.TypeFor[turnstone.Result](): wordsOf(turnstone.ResultPassed,
		turnstone.ResultFailed, turnstone.ResultTimedOut, turnstone.ResultError),
	reflect.TypeFor[turnstone.Status](): wordsOf(turnstone.StepPassed, turnstone.StepFailed,
		turnstone.StepTimeout, turnstone.StepSkipped, turnstone.StepError),
	reflect.TypeFor[turnstone.TurnStatus](): wordsOf(turnstone.TurnRunning, turnstone.TurnDone),
	reflect.TypeFor[doctor.Status](): wordsOf(doctor.StatusOK, doctor.StatusWarn,
		doctor.StatusFail),
	reflect.TypeFor[kernelcheck.Presence](): wordsOf(kernelcheck.BuiltIn, kernelcheck.AsModule,
		kernelcheck.Present, kernelcheck.Missing, kernelcheck.Unknown),
	reflect.TypeFor[need.Level](): wordsOf(need.Always, need.QEMU, need.Firecracker,
		need.Optional),
	reflect.TypeFor[sandboxes.State](): wordsOf(sandboxes.StateCreating,
		sandboxes.StateReady, sandboxes.StateRunning, sandboxes.StateStopped,
		sandboxes.StateFailed),
	reflect.TypeFor[turnstone.MergeOutcome](): wordsOf(turnstone.MergeDone,
		turnstone.MergeFastForward, turnstone.MergeUpToDate, turnstone.MergeConflicts),
	reflect.TypeFor[turnstone.ChangeStatus](): wordsOf(turnstone.ChangeAdded,
		turnstone.ChangeModified, turnstone.ChangeDeleted, turnstone.ChangeRetyped,
		turnstone.ChangeRenamed),
}

func wordsOf[T ~string](all ...T) (list []string) {
	for _, w := range all {
		list = append(list, string(w))
	}
	return list
}

// forms are the types whose JSON differs from their fields.
var forms = map[reflect.Type]any{
	reflect.TypeFor[time.Time]():        map[string]any{"type": "string", "format": "date-time"},
	reflect.TypeFor[turnstone.Millis](): map[string]any{"type": "number", "minimum": 0},
	reflect.TypeFor[turnstone.Mode](): map[string]any{"type": "string",
		"pattern": "^[0-7]{4}$"},
	reflect.TypeFor[turnstone.Digest](): map[string]any{"type": "string",
		"pattern": "^(sha256:[0-9a-f]{64})?$"},
	reflect.TypeFor[json.RawMessage](): map[string]any{"type": "object"},
	reflect.TypeFor[turnstone.TurnID](): map[string]any{"type": "string",
		"pattern": "^(t_[0-9a-v]{18})?$"},
	reflect.TypeFor[turnstone.SessionID](): map[string]any{"type": "string",
		"pattern": "^s_[0-9a-v]{18}$"},
	reflect.TypeFor[turnstone.SandboxID](): map[string]any{"type": "string",
		"pattern": "^sb_[0-9a-v]{18}$"},
}

// A schemaMaker creates a JSON Schema (2020-12) of Go types as encoding/json prints them.
type schemaMaker struct {
	defs  map[string]any
	types map[string]reflect.Type // of defs
	errs  []error
}

// schemaOf returns the schema of what a command prints.
func schemaOf(command string) (map[string]any, error) {
	m := &schemaMaker{defs: map[string]any{}, types: map[string]reflect.Type{}}
	root := m.object(printed[command])
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = strings.TrimSpace("turn " + command + " --json")
	if command == "" {
		root["title"] = "the last line on standard error of a command with --json that fails"
	}
	if len(m.defs) > 0 {
		root["$defs"] = m.defs
	}
	return root, errors.Join(m.errs...)
}

// defNames are the names in schemas of types that have another name in Go.
var defNames = map[reflect.Type]string{
	reflect.TypeFor[turnstone.TurnReport]():      "Turn",
	reflect.TypeFor[turnstone.TurnState]():       "State",
	reflect.TypeFor[turnstone.TreeRef]():         "Ref",
	reflect.TypeFor[turnstone.ImageRecipe]():     "Recipe",
	reflect.TypeFor[turnstone.NetworkSpec]():     "Spec",
	reflect.TypeFor[turnstone.StoreSummary]():    "Summary",
	reflect.TypeFor[turnstone.Conflict]():        "ConflictJSON",
	reflect.TypeFor[turnstone.ConflictVersion](): "VersionJSON",
	reflect.TypeFor[turnstone.MergeRename]():     "Rename",
	reflect.TypeFor[turnstone.KeptBuild]():       "Kept",
	reflect.TypeFor[turnstone.TemplateLayer]():   "Layer",
	reflect.TypeFor[turnstone.StoreSwept]():      "Swept",
	reflect.TypeFor[turnstone.StoreUsage]():      "Usage",
}

func (m *schemaMaker) of(t reflect.Type) any {
	if form, ok := forms[t]; ok {
		return form
	}
	if list, ok := words[t]; ok {
		return map[string]any{"type": "string", "enum": list}
	}
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return map[string]any{"type": "string"}
	}
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		m.errs = append(m.errs, fmt.Errorf("%s has a MarshalJSON: add it to forms", t))
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if t == reflect.TypeFor[time.Duration]() {
			m.errs = append(m.errs, errors.New("a time.Duration is printed: use turnstone.Millis"))
		}
		return map[string]any{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Pointer:
		return m.of(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": m.of(t.Elem())}
	case reflect.Array:
		return map[string]any{"type": "array", "items": m.of(t.Elem()), "minItems": t.Len(),
			"maxItems": t.Len()}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": m.of(t.Elem())}
	case reflect.Struct:
		name := cmp.Or(defNames[t], t.String()[strings.LastIndexByte(t.String(), '.')+1:])
		// Without the package: the place of a type in the source is not part of the interface.
		name = strings.ToUpper(name[:1]) + name[1:]
		if other, ok := m.types[name]; ok && other != t {
			m.errs = append(m.errs, fmt.Errorf("%s and %s have one name in the schema", t, other))
		} else if !ok {
			m.types[name] = t // before its fields: it may contain itself
			m.defs[name] = m.object(t)
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	}
	m.errs = append(m.errs, fmt.Errorf("%s has no schema", t))
	return nil
}

// snake returns the form of field names.
var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func (m *schemaMaker) object(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" || hidden(t, f, name) {
			continue
		}
		if !snake.MatchString(name) {
			m.errs = append(m.errs, fmt.Errorf("%s.%s is called %q", t, f.Name, name))
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if optional && f.Type == reflect.TypeFor[*struct{}]() {
			continue // it only hides another field, and is never present
		}
		schema := m.of(f.Type)
		if !optional {
			required = append(required, name)
			if f.Type.Kind() == reflect.Pointer {
				schema = map[string]any{"anyOf": []any{schema, map[string]any{"type": "null"}}}
			}
		}
		properties[name] = schema
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required,
		"additionalProperties": false}
}

// hidden reports whether a field nearer to t has the same name in JSON.
func hidden(t reflect.Type, f reflect.StructField, name string) bool {
	return slices.ContainsFunc(reflect.VisibleFields(t), func(g reflect.StructField) bool {
		other, _, _ := strings.Cut(g.Tag.Get("json"), ",")
		return other == name && len(g.Index) < len(f.Index)
	})
}

// checkSchema ends the process if a command's output does not match its schema. All scripts run
// turn with it.
func checkSchema(command string, doc []byte) {
	if err := matchesSchema(command, doc); err != nil {
		fmt.Fprintf(os.Stderr, "turn %s --json: %v\n%s\n", command, err, doc)
		os.Exit(97)
	}
}

func matchesSchema(command string, doc []byte) error {
	if _, ok := printed[command]; !ok {
		return errors.New("there is no schema")
	}
	schema, err := schemaOf(command)
	if err != nil {
		return err
	}
	return validate(schema, doc)
}

func validate(schema map[string]any, doc []byte) error {
	b, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", plain); err != nil {
		return err
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

func schemaFile(command string) string {
	if command == "" {
		command = "error"
	}
	return strings.ReplaceAll(command, " ", "-") + ".json"
}

// TestSchemas checks that docs/schemas has the schema of each command with --json, and no other
// file. With -update it writes them.
func TestSchemas(t *testing.T) {
	const dir = "../../docs/schemas"
	want := map[string][]byte{}
	for command := range printed {
		schema, err := schemaOf(command)
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		b, err := json.MarshalIndent(schema, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		want[schemaFile(command)] = append(b, '\n')
	}
	if *update {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range want {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || !bytes.Equal(b, want[e.Name()]) {
			t.Errorf("%s differs from the types: "+
				"go test ./cmd/turn -run TestSchemas -update (%v)", e.Name(), err)
		}
		delete(want, e.Name())
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}

// jsonCommands are the commands that have --json.
func jsonCommands(t *testing.T) []string {
	t.Helper()
	var c commandLine
	parser, _, err := cli.NewParser(&c, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	var walk func(n *kong.Node, path string)
	walk = func(n *kong.Node, path string) {
		if slices.ContainsFunc(n.Flags, func(f *kong.Flag) bool { return f.Name == "json" }) {
			list = append(list, path)
		}
		for _, child := range n.Children {
			walk(child, strings.TrimSpace(path+" "+child.Name))
		}
	}
	walk(parser.Model.Node, "")
	return list
}

// TestEveryCommandHasASchema checks that each also has a script that runs it with --json, and a row
// in docs/json.md.
func TestEveryCommandHasASchema(t *testing.T) {
	list := jsonCommands(t)
	known := slices.DeleteFunc(slices.Collect(maps.Keys(printed)),
		func(s string) bool { return s == "" || modes[s] != "" })
	slices.Sort(list)
	slices.Sort(known)
	if !slices.Equal(list, known) {
		t.Errorf("commands with --json:\n%q\nschemas:\n%q", list, known)
	}
	scripts := readAll(t, "testdata/*/*.txtar")
	page := readAll(t, "../../docs/json.md")
	for _, command := range slices.Concat(list, slices.Collect(maps.Keys(modes))) {
		file := schemaFile(command)
		command = cmp.Or(modes[command], command)
		if !regexp.MustCompile(`(?m)^(?:exec|status [0-9]+) turn ` + command +
			` [^\n]*--json|sh -c 'turn ` + command + ` [^\n]*--json`).MatchString(scripts) {
			t.Errorf("no script runs turn %s --json", command)
		}
		if !strings.Contains(page, "| `turn "+command+"` |") ||
			!strings.Contains(page, "(schemas/"+file+")") {
			t.Errorf("docs/json.md has no row of turn %s", command)
		}
	}
}

func readAll(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", pattern, err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// TestSchemasRefuse checks that a schema rejects a document that violates the rules.
func TestSchemasRefuse(t *testing.T) {
	good := `{"version":"1","go":"go1","os":"linux","arch":"amd64"}`
	if err := matchesSchema("version", []byte(good)); err != nil {
		t.Error(err)
	}
	for command, docs := range map[string][]string{
		"version": {`[]`, `{}`, strings.Replace(good, "{", `{"more":1,`, 1),
			strings.Replace(good, `"1"`, "1", 1), good + good},
		"fork": {`{"session":"s_x","name":"b","created":"2026-01-01T00:00:00Z"}`,
			`{"session":"s_000000000000000000","name":"b","created":"yesterday"}`},
		"session ls": {`{"sessions":null}`, `[]`},
		"": {`{"error":{"op":"","kind":"odd","subject":"","message":"","hint":""}}`,
			`{"error":"x"}`},
		"nothing": {`{}`},
	} {
		for _, doc := range docs {
			if matchesSchema(command, []byte(doc)) == nil {
				t.Errorf("%s: %s passes", command, doc)
			}
		}
	}
}
