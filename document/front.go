package document

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// maxFront bounds the front matter in bytes; maxEnv bounds the number of entries of env and files.
const (
	maxFront = 256 << 10
	maxEnv   = 1000
)

var bom = []byte("\xef\xbb\xbf")

// A frontLayout holds the positions of the front matter and its turn: map.
type frontLayout struct {
	present bool
	start   int // of the first line, after a byte order mark
	end     int // after the closing line
	close   int // start of the closing line
	indent  int // columns before the keys
	turn    int // start of the turn: map
	turnEnd int // equal to turn if there is no turn: map
	// the front matter consists of the turn: map, which notes that turn added the front matter
	whole bool
	keys  []string // the keys that the author sets
}

// A frontKey reads a key's value. It reports faults through p.
type frontKey struct {
	name string
	read func(p *docParser, n *yaml.Node)
}

// frontKeys are the known keys.
var frontKeys = []frontKey{
	{"image", (*docParser).readImage},
	{"env", (*docParser).readEnv},
	{"files", (*docParser).readFiles},
	{"cwd", (*docParser).readCwd},
	{"timeout", (*docParser).readTimeout},
	{"cpus", (*docParser).readCPUs},
	{"memory", (*docParser).readMemory},
	{"disk", (*docParser).readDisk},
	{"network", (*docParser).readNetwork},
	{"isolation", func(p *docParser, n *yaml.Node) {
		p.doc.Front.Isolation = oneOf(p, n, "isolation", IsolationMicroVM, IsolationAny)
	}},
	{deterministicKey, (*docParser).readDeterministic},
	{"tier", func(p *docParser, n *yaml.Node) {
		p.doc.Front.Tier = oneOf(p, n, "tier", turnstone.TierSeeded, turnstone.TierStrict)
	}},
	{"seed", (*docParser).readSeed},
	{"clock", (*docParser).readClock},
	{"session", func(p *docParser, n *yaml.Node) { p.name(n, "session", &p.doc.Front.Session) }},
	{"branch", func(p *docParser, n *yaml.Node) { p.name(n, "branch", &p.doc.Front.Branch) }},
	{"home", func(p *docParser, n *yaml.Node) { p.name(n, "home", &p.doc.Front.Home) }},
	{"lifetime", func(p *docParser, n *yaml.Node) {
		p.doc.Front.Lifetime = oneOf(p, n, "lifetime", turnstone.LifetimeTurn,
			turnstone.LifetimeSession)
	}},
	{"snapshot", func(p *docParser, n *yaml.Node) {
		p.doc.Front.Snapshot = oneOf(p, n, "snapshot", SnapshotNone, SnapshotVM)
	}},
	{"checkpoint", func(p *docParser, n *yaml.Node) {
		p.doc.Front.Checkpoint = oneOf(p, n, "checkpoint", turnstone.CheckpointNone,
			turnstone.CheckpointStep)
	}},
	{"retry", (*docParser).readRetry},
	{turnKey, func(p *docParser, n *yaml.Node) {
		if p.claims != nil {
			p.claims.turn = n
		}
	}},
}

func frontKeyNames() []string {
	var names []string
	for _, k := range frontKeys {
		names = append(names, k.name)
	}
	return names
}

var (
	envName      = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	unclosedHead = lazyregexp.New(`^([a-z]+):([ \t]|$)`)
	parserFault  = lazyregexp.New(
		`^did not find expected (key|node content|'-' indicator|',' or '[]}]')`)
	yamlError = lazyregexp.New(`^yaml: (?:line (\d+): )?(.*)$`)
)

// readFront finds and reads the front matter, and sets p.base.
func (p *docParser) readFront() {
	start := 0
	if bytes.HasPrefix(p.src, bom) {
		start = len(bom)
	}
	p.base = start
	l := &p.doc.layout.front
	l.start, l.end = start, start
	if !isRule(p.src[start:lineEnd(p.src, start)], "---") {
		return
	}
	first := nextLine(p.src, start)
	for at := first; at < len(p.src); at = nextLine(p.src, at) {
		if line := p.src[at:lineEnd(p.src, at)]; isRule(line, "---") || isRule(line, "...") {
			l.present, l.close, l.end = true, at, nextLine(p.src, at)
			p.base = l.end
			l.turn, l.turnEnd = at, at
			p.readYAML(first, at)
			return
		}
	}
	m := unclosedHead.FindSubmatch(p.src[first:lineEnd(p.src, first)])
	if m != nil && slices.Contains(frontKeyNames(), string(m[1])) {
		p.errorAt(start, "the front matter that begins here is not closed",
			"end it with a line of ---")
	}
}

// isRule reports whether a line consists of rule and trailing blanks.
func isRule(line []byte, rule string) bool {
	return bytes.HasPrefix(line, []byte(rule)) && len(trimBlanks(line[len(rule):])) == 0
}

// readYAML reads the front matter's text src[from:to].
func (p *docParser) readYAML(from, to int) {
	text := p.src[from:to]
	if len(text) > maxFront {
		p.errorAt(from, fmt.Sprintf("the front matter has more than %s",
			turnstone.Bytes(maxFront).Human()), "move data into files")
		return
	}
	// YAML ends lines at these characters, unlike the rest of a document.
	if i := bytes.IndexAny(text, "\u0085\u2028\u2029"); i >= 0 {
		p.errorAt(from+i, "a Unicode line separator in the front matter",
			"replace the line separator by a line feed")
		return
	}
	// The empty line replaces the opening rule, so that line numbers match the file.
	var root yaml.Node
	if err := yaml.Unmarshal(append([]byte("\n"), text...), &root); err != nil {
		line, msg := 0, err.Error()
		if m := yamlError.FindStringSubmatch(msg); m != nil {
			line, _ = strconv.Atoi(m[1])
			msg = m[2]
		}
		if parserFault.MatchString(msg) {
			line++ // the library counts the lines of these faults from 0
		}
		p.errorAt(p.frontOffset(max(2, line), 1),
			"the front matter is not YAML: "+oneLine(msg, 200),
			"write one key: value on each line, and quote values with special characters")
		return
	}
	if root.Kind == 0 || len(root.Content) == 0 {
		return
	}
	m := root.Content[0]
	if m.Kind != yaml.MappingNode || m.Style&yaml.FlowStyle != 0 {
		p.errorNode(m, "the front matter is not a list of keys and values, one per line",
			"write lines such as image: python; to begin a document with a rule, write *** or "+
				"insert an empty line before the rule")
		return
	}
	if p.plainNodes(m) {
		p.readKeys(m)
	}
}

// plainNodes rejects anchors and aliases. No document needs them: with aliases a value depends on
// another value, and a short text can expand to a huge value.
func (p *docParser) plainNodes(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		p.errorNode(n, "anchors and aliases are not allowed in the front matter",
			"write the value where it is used")
		return false
	}
	for _, c := range n.Content {
		if !p.plainNodes(c) {
			return false
		}
	}
	return true
}

func (p *docParser) readKeys(m *yaml.Node) {
	seen := map[string]bool{}
	p.doc.layout.front.indent = m.Column - 1
	for i := 0; i+1 < len(m.Content); i += 2 {
		key := m.Content[i]
		if seen[key.Value] {
			p.errorNode(key, fmt.Sprintf("key %q is given twice", oneLine(key.Value, maxName)),
				"remove one of them")
			continue
		}
		seen[key.Value] = true
		p.readKey(m, i)
	}
	p.onlyDeterministic(m)
}

func (p *docParser) readKey(m *yaml.Node, i int) {
	key, value := m.Content[i], m.Content[i+1]
	k := slices.IndexFunc(frontKeys,
		func(k frontKey) bool { return key.Kind == yaml.ScalarNode && k.name == key.Value })
	if k < 0 {
		names := frontKeyNames()
		known := names[:len(names)-1] // turn: is written by the receipt, not by the author
		near, misspelt := misspelling(key.Value, known)
		if slices.Contains(networkKeys, key.Value) {
			near, misspelt = "network."+key.Value, true
		}
		if key.Kind == yaml.ScalarNode && !misspelt {
			p.ignore(key.Line, key.Value)
			return
		}
		p.errorNode(key, fmt.Sprintf("unknown key %q; the nearest known one is %q",
			oneLine(key.Value, maxName), near),
			"known keys: "+strings.Join(known, ", "))
		return
	}
	p.doc.layout.front.keys = append(p.doc.layout.front.keys, key.Value)
	frontKeys[k].read(p, value)
	if key.Value == turnKey {
		p.locateTurn(m, i)
	}
}

// locateTurn finds the lines of the turn: entry: the line of its key and all following lines with
// deeper indentation. The next line must be another key, a comment or an empty line; otherwise
// cutting the entry out would leave a part of it.
func (p *docParser) locateTurn(m *yaml.Node, i int) {
	l := &p.doc.layout.front
	key := m.Content[i]
	start := lineStart(p.src, p.frontOffset(key.Line, 1))
	indent := key.Column - 1
	if !bytes.HasPrefix(p.src[min(len(p.src), start+indent):], []byte(turnKey+":")) {
		p.errorNode(key, "the turn: entry does not have the form that turn writes",
			"delete the entry; turn writes it again")
		return
	}
	end := nextLine(p.src, start)
	for at := end; at < l.close; at = nextLine(p.src, at) {
		line := p.src[at:lineEnd(p.src, at)]
		body := bytes.TrimLeft(line, " ")
		if len(trimBlanks(body)) == 0 {
			continue // an empty line belongs to the entry only if more lines of the entry follow
		}
		if len(line)-len(body) <= indent {
			break
		}
		end = nextLine(p.src, at)
	}
	next := l.close
	if i+2 < len(m.Content) {
		next = lineStart(p.src, p.frontOffset(m.Content[i+2].Line, 1))
	}
	for at := end; at < next; at = nextLine(p.src, at) {
		if line := trimBlanks(p.src[at:lineEnd(p.src, at)]); len(line) > 0 && line[0] != '#' {
			p.errorAt(at, "the turn: entry does not have the form that turn writes",
				"delete the entry; turn writes it again")
			return
		}
	}
	l.turn, l.turnEnd = start, end
	p.cut += end - start
	first := nextLine(p.src, l.start)
	turn := m.Content[i+1]
	l.whole = start == first && end == l.close && entryOf(turn, addedKey) == addedValue
}

// entryOf returns the first value of key in a turn: map, or "".
func entryOf(turn *yaml.Node, key string) string {
	for i := 0; turn.Kind == yaml.MappingNode && i+1 < len(turn.Content); i += 2 {
		if turn.Content[i].Value == key {
			return turn.Content[i+1].Value
		}
	}
	return ""
}

// frontOffset converts a line and column of the YAML reader, which counts characters, into an
// offset. Lines count from the document's first line.
func (p *docParser) frontOffset(line, column int) int {
	at := p.doc.layout.front.start
	for ; line > 1 && at < p.doc.layout.front.close; line-- {
		at = nextLine(p.src, at)
	}
	end := lineEnd(p.src, at)
	for r := range strings.SplitSeq(string(p.src[at:end]), "") {
		if column--; column <= 0 {
			break
		}
		at += len(r)
	}
	return at
}

func (p *docParser) errorNode(n *yaml.Node, msg, hint string) {
	if len(p.errs) == maxErrors {
		p.more++ // without computing the position, which takes time
		return
	}
	p.errorAt(p.frontOffset(n.Line, n.Column), msg, hint)
}

// text returns the value of a string, or reports a fault.
func (p *docParser) text(n *yaml.Node, key string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str":
		p.errorNode(n, key+" is not a string", "write the value in quotes")
	case n.Value == "":
		p.errorNode(n, key+" is empty", "write a value, or remove the key")
	case strings.ContainsFunc(n.Value, isControl):
		p.errorNode(n, key+" contains a control character", "remove the control character")
	default:
		return n.Value, true
	}
	return "", false
}

// scalar returns a scalar value's text, whatever its type.
func (p *docParser) scalar(n *yaml.Node, key, hint string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		p.errorNode(n, key+" has no scalar value", hint)
		return "", false
	}
	return n.Value, true
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func (p *docParser) readImage(n *yaml.Node) {
	s, ok := p.text(n, "image")
	if ok && (len(s) > 255 || strings.Contains(s, " ")) {
		p.errorNode(n, "image is not a valid name", "write image: base or image: python")
		return
	}
	p.doc.Front.Image = s
}

// name reads the name of a session, a branch or a home; key is the key in the front matter.
func (p *docParser) name(n *yaml.Node, key string, to *string) {
	s, ok := p.scalar(n, key, turnstone.HintOf(turnstone.CheckName(key, "")))
	if !ok {
		return
	}
	if err := turnstone.CheckName(key, s); err != nil {
		p.errorNode(n, fmt.Sprintf("%s: %q is not a valid name", key, oneLine(s, maxName)),
			turnstone.HintOf(err))
		return
	}
	*to = s
}

func oneOf[T ~string](p *docParser, n *yaml.Node, key string, values ...T) T {
	hint := fmt.Sprintf("write %s: %s or %s: %s", key, values[0], key, values[1])
	s, ok := p.scalar(n, key, hint)
	if ok && !slices.Contains(values, T(s)) {
		p.errorNode(n, fmt.Sprintf("%s: %q is neither %s nor %s", key, oneLine(s, maxName),
			values[0], values[1]), hint)
		return ""
	}
	return T(s)
}

func (p *docParser) readEnv(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		p.errorNode(n, "env is not names and values",
			"write a line NAME: value for each variable, indented below env:")
		return
	}
	if len(n.Content)/2 > maxEnv {
		p.errorNode(n, fmt.Sprintf("env has more than %d variables", maxEnv), "set them in a step")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := oneLine(key.Value, maxName)
		switch {
		case key.Kind != yaml.ScalarNode || !envName.MatchString(key.Value):
			p.errorNode(key, fmt.Sprintf("%q cannot be the name of a variable", name),
				"use letters, digits and \"_\", not beginning with a digit")
		case seen[key.Value]:
			p.errorNode(key, fmt.Sprintf("variable %q is given twice", name), "remove one of them")
		case value.Kind != yaml.ScalarNode:
			p.errorNode(value, fmt.Sprintf("variable %q does not have a scalar value", name),
				"a variable is text: write the value in quotes")
		case strings.ContainsRune(value.Value, 0):
			p.errorNode(value, fmt.Sprintf("variable %q contains a NUL byte", name),
				"remove the NUL byte: an environment cannot contain it")
		case value.ShortTag() == "!!null":
			p.doc.Front.Env = append(p.doc.Front.Env, key.Value+"=")
		default:
			p.doc.Front.Env = append(p.doc.Front.Env, key.Value+"="+value.Value)
		}
		seen[key.Value] = true
	}
}

func (p *docParser) readFiles(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		p.errorNode(n, "files is not a list",
			"write a line - PATH or - PATH:DEST for each file, indented below files:")
		return
	}
	if len(n.Content) > maxEnv {
		p.errorNode(n, fmt.Sprintf("files has more than %d entries", maxEnv),
			"list the folder that contains the files")
		return
	}
	for _, c := range n.Content {
		s, ok := p.text(c, "a file")
		if ok && strings.HasPrefix(s, ":") {
			p.errorNode(c, fmt.Sprintf("%q names no file", oneLine(s, maxName)),
				"write PATH or PATH:DEST")
			continue
		}
		if ok {
			p.doc.Front.Files = append(p.doc.Front.Files, s)
		}
	}
}

func (p *docParser) readCwd(n *yaml.Node) {
	s, ok := p.text(n, "cwd")
	if !ok {
		return
	}
	dir, err := p.resolveCwd(s)
	if err != nil {
		p.errorNode(n, "cwd: "+err.Error(), "write a path, such as "+path.Join(DefaultCwd, "data"))
		return
	}
	p.doc.Front.Cwd = dir
}

func (p *docParser) readTimeout(n *yaml.Node) {
	const hint = "write a number and a unit, such as 90s or 5m"
	s, ok := p.scalar(n, "timeout", hint)
	if !ok {
		return
	}
	d, err := parseTimeout(s)
	if err != nil {
		p.errorNode(n, "timeout: "+err.Error(), hint)
		return
	}
	p.doc.Front.Timeout = d
}

func (p *docParser) readCPUs(n *yaml.Node) {
	hint := fmt.Sprintf("write a whole number from 1 to %d", turnstone.MaxCPUs)
	s, ok := p.scalar(n, "cpus", hint)
	if !ok {
		return
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < 1 || v > turnstone.MaxCPUs {
		p.errorNode(n, fmt.Sprintf("cpus: %q is not a number of CPUs", oneLine(s, maxName)), hint)
		return
	}
	p.doc.Front.CPUs = v
}

func (p *docParser) readMemory(n *yaml.Node) {
	p.doc.Front.Memory = p.size(n, "memory", turnstone.MinMemory, turnstone.MaxMemory)
}

func (p *docParser) readDisk(n *yaml.Node) {
	p.doc.Front.Disk = p.size(n, "disk", turnstone.MinDisk, turnstone.MaxDisk)
}

func (p *docParser) size(n *yaml.Node, key string, least, most turnstone.Bytes) turnstone.Bytes {
	hint := fmt.Sprintf("write a size from %s to %s, such as 2GiB", least, most)
	s, ok := p.scalar(n, key, hint)
	if !ok {
		return 0
	}
	v, err := turnstone.ParseBytes(s)
	switch {
	case err != nil:
		p.errorNode(n, fmt.Sprintf("%s: %q is not a size", key, oneLine(s, maxName)), hint)
	case v < least || v > most:
		p.errorNode(n, fmt.Sprintf("%s: %s is not between %s and %s", key, v, least, most), hint)
	default:
		return v
	}
	return 0
}
