package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/suggest"
)

// maxFile bounds the file, in bytes.
const maxFile = 64 << 10

// A Problem is an error in one setting.
type Problem struct {
	Source string // path of the file, or name of the variable
	Line   int    // of the file; 0: of a variable, or unknown
	Key    string // such as "limits.idle"; empty: the file is no TOML
	Err    error
	Hint   string
}

// Error names the place, the key and the error.
func (p *Problem) Error() string {
	place := p.Source
	if p.Line > 0 {
		place = fmt.Sprintf("%s:%d", p.Source, p.Line)
	}
	if p.Key != "" {
		place += ": " + p.Key
	}
	return place + ": " + p.Err.Error()
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// Problems are the errors of a configuration, in the order of the file.
type Problems []*Problem

// Error has a line for each problem.
func (p Problems) Error() string {
	var lines []string
	for _, one := range p {
		line := one.Error()
		if one.Hint != "" {
			line += " (" + one.Hint + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// isSet returns the first key that the file or a variable sets, or the first key.
func (l *loader) isSet(keys ...string) string {
	for _, key := range keys {
		if l.from[key] != "" || has(l.tree, strings.Split(key, ".")) {
			return key
		}
	}
	return keys[0]
}

// A loader collects the problems of a configuration.
type loader struct {
	dir      string
	path     string
	text     string
	tree     map[string]any // the file
	from     map[string]string
	problems Problems
	tenants  any // the value of tenants: its tables are complete once quota is known
}

// Load reads the settings of the state directory dir: from the file at path, then from environ,
// which has "NAME=VALUE" as os.Environ does and wins. An empty path is File in dir, which may be
// missing. The error is of kind Invalid and has Problems.
func Load(dir, path string, environ []string) (*Config, error) {
	optional := path == ""
	if optional {
		path = filepath.Join(dir, File)
	}
	l := &loader{dir: dir, path: path, from: map[string]string{}}
	text, err := read(path)
	if err != nil && (!optional || !errors.Is(err, fs.ErrNotExist)) {
		hint := "make it a file that only you can write: chmod go-w " + path
		switch {
		case errors.Is(err, fs.ErrNotExist):
			hint = "write the file, or name another one with --config"
		case errors.Is(err, fs.ErrPermission):
			hint = "let the user of turn serve read the file"
		}
		return nil, turnstone.NewError("server.config", turnstone.KindInvalid, path, err).
			WithHint(hint)
	}
	return l.load(text, environ)
}

// read returns the content of a file that other users cannot write: it says whom the server trusts.
func read(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", errors.New("is not a regular file")
	case info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("has mode %04o: other users can write it", info.Mode().Perm())
	case st == nil || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return "", errors.New("belongs to another user")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("is larger than %s", turnstone.Bytes(maxFile).Human())
	}
	return string(b), err
}

// Parse is Load without a file system: it checks the form of all settings, and that they fit
// together.
func Parse(dir, text string, environ []string) (*Config, error) {
	l := &loader{dir: dir, path: File, from: map[string]string{}}
	return l.load(text, environ)
}

func (l *loader) load(text string, environ []string) (*Config, error) {
	c := &Config{}
	if err := defaults(reflect.ValueOf(c).Elem(), configSettings()); err != nil {
		return nil, turnstone.NewError("server.config", turnstone.KindInternal, "", err)
	}
	l.text = text
	if _, err := toml.Decode(text, &l.tree); err != nil {
		l.syntax(err)
	} else {
		l.file(c)
	}
	l.environment(c, environ)
	l.ownQuotas(c)
	if len(l.problems) == 0 {
		l.complete(c)
		l.check(c)
	}
	if len(l.problems) == 0 {
		return c, nil
	}
	slices.SortStableFunc(l.problems, func(a, b *Problem) int { return a.Line - b.Line })
	return nil, turnstone.NewError("server.config", turnstone.KindInvalid, "", l.problems).
		WithHint(l.problems[0].Hint)
}

// syntax adds the problem of a file that is no TOML.
func (l *loader) syntax(err error) {
	p := &Problem{Source: l.path, Err: errors.New("is not TOML"),
		Hint: `write [table] and key = value on lines of their own, and texts in quotes`}
	var fault toml.ParseError
	if errors.As(err, &fault) {
		// The message may quote the value, which may be a secret that does not belong there.
		// So may the key, if the secret stands on a line of its own.
		p.Line = fault.Position.Line
		if isKey(fault.LastKey) {
			p.Key = fault.LastKey
		}
		p.Err = errors.New(strings.TrimSuffix("is not TOML: "+clean(fault.Message), ": "))
	}
	l.problems = append(l.problems, p)
}

// isKey reports whether key is a setting or a table.
func isKey(key string) bool {
	list, one, _ := strings.Cut(key, ".")
	return slices.ContainsFunc(configSettings(), func(s setting) bool {
		return s.key == key || strings.HasPrefix(s.key, key+".") || s.key == list &&
			slices.ContainsFunc(s.tables(), func(s setting) bool { return s.key == one })
	})
}

// clean cuts a message of the TOML library before what it quotes, except for single characters.
func clean(message string) string {
	if i := strings.IndexAny(message, `"'`+"`"); i >= 0 {
		message = strings.TrimRight(message[:i], " :(")
		message = strings.TrimSuffix(strings.TrimSuffix(message, " but found"), " but got")
		message = strings.TrimSuffix(message, "expected")
	}
	return message
}

// problem adds a problem of a setting that was set in the file or in a variable.
func (l *loader) problem(key string, err error, hint string) {
	p := &Problem{Source: l.path, Key: key, Err: err, Hint: hint}
	section, _, _ := strings.Cut(key, ".")
	if v := l.from[key]; v != "" {
		p.Source = v
	} else if v := l.from[section]; v != "" { // of a list of tables
		p.Source = v
	} else {
		p.Line = l.line(strings.Split(key, "."))
	}
	l.problems = append(l.problems, p)
}

// file takes the settings of the file.
func (l *loader) file(c *Config) {
	l.table(reflect.ValueOf(c).Elem(), configSettings(), l.tree, "")
}

// table sets the fields of a struct from a table; prefix is the table's key with a dot.
func (l *loader) table(to reflect.Value, all []setting, tree map[string]any, prefix string) {
	known := map[string]bool{}
	for _, s := range all {
		section, key, ok := strings.Cut(s.key, ".")
		if !ok {
			known[s.key] = true
			if v := tree[s.key]; v != nil {
				l.set(s, to, v, prefix+s.key)
			}
			continue
		}
		known[section] = true
		switch sub := tree[section].(type) {
		case nil:
		case map[string]any:
			if v := sub[key]; v != nil {
				l.set(s, to, v, prefix+s.key)
			}
		default:
			if l.first(prefix + section) {
				l.problem(prefix+section, errors.New("is not a table"),
					"write ["+prefix+section+"] on a line of its own")
			}
		}
	}
	for key, v := range tree {
		sub, isTable := v.(map[string]any)
		if !known[key] {
			l.unknown(prefix, key, all)
		} else if isTable {
			for name := range sub {
				if !slices.ContainsFunc(all, func(s setting) bool {
					return s.key == key+"."+name || s.key == key
				}) {
					l.unknown(prefix, key+"."+name, all)
				}
			}
		}
	}
}

// first reports whether no problem about the key was added yet.
func (l *loader) first(key string) bool {
	return !slices.ContainsFunc(l.problems, func(p *Problem) bool { return p.Key == key })
}

func (l *loader) unknown(prefix, key string, all []setting) {
	var keys []string
	for _, s := range all {
		keys = append(keys, s.key)
	}
	if prefix == "" && !strings.Contains(key, ".") { // perhaps a table
		for _, s := range all {
			if table, _, is := strings.Cut(s.key, "."); is && !slices.Contains(keys, table) {
				keys = append(keys, table)
			}
		}
	}
	nearest, _ := suggest.Nearest(key, keys)
	l.problem(prefix+key, errors.New("is not a setting"),
		fmt.Sprintf("the nearest one is %s%s", prefix, nearest))
}

// set takes one value; key is its full key.
func (l *loader) set(s setting, to reflect.Value, v any, key string) {
	field := to.FieldByIndex(s.index)
	if s.field.Type == typeTenants { // their defaults are the quotas
		l.tenants = v
		return
	}
	if of := s.tables(); of != nil {
		l.tables(s.key, of, field, v)
		return
	}
	if err := s.set(field, v); err != nil {
		hint := ""
		if words := s.field.Tag.Get("oneof"); words != "" {
			hint = "use " + strings.ReplaceAll(words, ",", ", ")
		}
		l.problem(key, err, hint)
	}
}

// list returns a list of tables. TOML has two spellings, which decode to different types.
func (l *loader) list(key string, v any) (tables []map[string]any, ok bool) {
	switch list := v.(type) {
	case []map[string]any:
		return list, true
	case []any:
		for _, one := range list {
			table, ok := one.(map[string]any)
			if !ok {
				l.problem(key, errors.New("is not a list of tables"), "write [["+key+"]]")
				return nil, false
			}
			tables = append(tables, table)
		}
		return tables, true
	}
	l.problem(key, errors.New("is not a list of tables"), "write [["+key+"]]")
	return nil, false
}

// ownQuotas takes the tables of tenants.
func (l *loader) ownQuotas(c *Config) {
	if l.tenants == nil {
		return
	}
	tables, _ := l.list("tenants", l.tenants)
	names := map[string]bool{}
	for n, table := range tables {
		q, key := c.Quota, fmt.Sprintf("tenants.%d.", n+1)
		t := Tenant{"", q.Sandboxes, q.CPUs, q.Memory, q.Disk, q.Stored, q.BytesOut, q.Turns, q.Pool}
		l.table(reflect.ValueOf(&t).Elem(), tenantSettings(), table, key)
		if t.Name == "" {
			l.problem(strings.TrimSuffix(key, "."), errors.New("has no name"), "name the tenant")
		} else if names[t.Name] {
			l.problem(key+"name", fmt.Errorf("is %s, which has a table already", t.Name),
				"write one table for each tenant")
		}
		names[t.Name] = true
		c.Tenants = append(c.Tenants, t)
	}
}

// tables takes a list of tables with settings.
func (l *loader) tables(key string, of []setting, to reflect.Value, v any) {
	tables, ok := l.list(key, v)
	if !ok {
		return
	}
	all := reflect.MakeSlice(to.Type(), len(tables), len(tables))
	for n, table := range tables {
		if err := defaults(all.Index(n), of); err != nil {
			l.problem(key, err, "")
		}
		l.table(all.Index(n), of, table, fmt.Sprintf("%s.%d.", key, n+1))
	}
	to.Set(all)
}

// environment takes the settings of the environment. Unknown variables with the prefix are
// problems, because a misspelled one would have no effect.
func (l *loader) environment(c *Config, environ []string) {
	var names []string
	for _, s := range configSettings() {
		names = append(names, s.variable())
	}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, Prefix) {
			continue
		}
		i := slices.Index(names, name)
		if i < 0 {
			nearest, _ := suggest.Nearest(name, names)
			l.problems = append(l.problems, &Problem{Source: name,
				Err:  errors.New("is not a variable of turn serve"),
				Hint: "the nearest one is " + nearest})
			continue
		}
		s := configSettings()[i]
		l.from[s.key] = name
		v, err := s.fromText(text)
		if err != nil {
			l.problem(s.key, err, "")
			continue
		}
		l.set(s, reflect.ValueOf(c).Elem(), v, s.key)
	}
}
