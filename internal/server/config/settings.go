package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
)

// A setting is one field of a Config, or of a table of a list of tables.
type setting struct {
	key   string // such as "limits.idle"
	field reflect.StructField
	index []int // of the field in its Config or table
}

// settings lists the fields of a struct in their order, sections flattened.
func settings(t reflect.Type) (all []setting) {
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("toml")
		if f.Type.Kind() != reflect.Struct {
			all = append(all, setting{key, f, []int{i}})
			continue
		}
		for _, s := range settings(f.Type) {
			all = append(all, setting{key + "." + s.key, s.field, append([]int{i}, s.index...)})
		}
	}
	return all
}

// The settings are listed at their first use: most processes read none.
var (
	configSettings = sync.OnceValue(func() []setting { return settings(reflect.TypeFor[Config]()) })
	issuerSettings = sync.OnceValue(func() []setting { return settings(reflect.TypeFor[Issuer]()) })
	tenantSettings = sync.OnceValue(func() []setting { return settings(reflect.TypeFor[Tenant]()) })
	poolSettings   = sync.OnceValue(func() []setting { return settings(reflect.TypeFor[Pool]()) })
)

// variable returns the name of the setting's environment variable.
func (s setting) variable() string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

var (
	typeDuration = reflect.TypeFor[time.Duration]()
	typeBytes    = reflect.TypeFor[turnstone.Bytes]()
	typeList     = reflect.TypeFor[[]string]()
	typeMap      = reflect.TypeFor[map[string]string]()
	typeIssuers  = reflect.TypeFor[[]Issuer]()
	typeTenants  = reflect.TypeFor[[]Tenant]()
	typePools    = reflect.TypeFor[[]Pool]()
)

// tables returns the settings of each table of a list of tables; nil: s is none.
func (s setting) tables() []setting {
	switch s.field.Type {
	case typeIssuers:
		return issuerSettings()
	case typePools:
		return poolSettings()
	case typeTenants:
		return tenantSettings()
	}
	return nil
}

// form describes the values of a setting to a reader.
func (s setting) form() string {
	switch s.field.Type {
	case typeDuration:
		return "duration"
	case typeBytes:
		return "size"
	case typeList:
		return "list"
	case typeMap:
		return "table of texts"
	case typeIssuers, typeTenants, typePools:
		return "list of tables"
	}
	switch s.field.Type.Kind() {
	case reflect.Int:
		return "number"
	case reflect.Bool:
		return "true or false"
	}
	if s.field.Tag.Get("kind") == "database" {
		return "path or URL"
	}
	if s.field.Tag.Get("kind") == "file" || s.field.Tag.Get("kind") == "secret" {
		return "path"
	}
	return "text"
}

// fromText returns the value that a text of the environment or of a default stands for.
func (s setting) fromText(text string) (any, error) {
	switch s.field.Type {
	case typeList:
		var list []any
		for _, word := range strings.Split(text, ",") {
			if word = strings.TrimSpace(word); word != "" {
				list = append(list, word)
			}
		}
		return list, nil
	case typeIssuers, typeTenants, typePools, typeMap:
		var m map[string]any
		if _, err := toml.Decode("value = "+text, &m); err != nil || len(m) != 1 {
			return nil, fmt.Errorf(`is not a value of TOML, such as [{name = "value"}]`)
		}
		return m["value"], nil
	}
	switch s.field.Type.Kind() {
	case reflect.Int:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || s.field.Type != reflect.TypeFor[int]() {
			return text, nil // set reports it, or parses a duration or a size
		}
		return n, nil
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return text, nil
		}
		return b, nil
	}
	return text, nil
}

// set stores a decoded value of TOML in the field to.
func (s setting) set(to reflect.Value, v any) error {
	text, isText := v.(string)
	switch s.field.Type {
	case typeDuration:
		d, err := time.ParseDuration(text)
		if !isText || err != nil {
			return fmt.Errorf("is not a duration: write a number and a unit, such as 90s or 24h")
		}
		to.SetInt(int64(d))
		return s.within(d, func(t string) (time.Duration, error) { return time.ParseDuration(t) })
	case typeBytes:
		b, err := turnstone.ParseBytes(text)
		if !isText || err != nil {
			return fmt.Errorf("is not a size: write a number and a unit, such as 1MiB")
		}
		to.SetInt(int64(b))
		return s.within(time.Duration(b), func(t string) (time.Duration, error) {
			b, err := turnstone.ParseBytes(t)
			return time.Duration(b), err
		})
	case typeList:
		return s.setList(to, v)
	case typeMap:
		return setMap(to, v)
	}
	switch to.Kind() {
	case reflect.Int:
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("is not a whole number")
		}
		to.SetInt(n)
		return s.within(time.Duration(n), func(t string) (time.Duration, error) {
			n, err := strconv.ParseInt(t, 10, 64)
			return time.Duration(n), err
		})
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("is neither true nor false")
		}
		to.SetBool(b)
		return nil
	}
	if !isText {
		return fmt.Errorf("is not a text: write it in quotes")
	}
	to.SetString(text)
	return s.checkText(text)
}

// within reports a value outside of the tags min and max.
func (s setting) within(v time.Duration, parse func(string) (time.Duration, error)) error {
	low, high := s.field.Tag.Get("min"), s.field.Tag.Get("max")
	least, err := parse(low)
	if err != nil {
		return fmt.Errorf("has a malformed bound %q", low) // a test parses all bounds
	}
	most, err := parse(high)
	if err != nil {
		return fmt.Errorf("has a malformed bound %q", high)
	}
	if v < least || v > most {
		return fmt.Errorf("is not between %s and %s", low, high)
	}
	return nil
}

func (s setting) setList(to reflect.Value, v any) error {
	list, ok := v.([]any)
	if text, is := v.(string); is && s.field.Tag.Get("text") != "" {
		list, ok = []any{text}, true
	}
	if !ok {
		return fmt.Errorf(`is not a list of texts, such as ["a", "b"]`)
	}
	words := make([]string, 0, len(list))
	for _, one := range list {
		word, ok := one.(string)
		if !ok {
			return fmt.Errorf(`is not a list of texts, such as ["a", "b"]`)
		}
		if err := s.checkText(word); err != nil {
			return err
		}
		if slices.Contains(words, word) {
			return fmt.Errorf("has %.60q twice", word)
		}
		words = append(words, word)
	}
	to.Set(reflect.ValueOf(words))
	return nil
}

func setMap(to reflect.Value, v any) error {
	table, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf(`is not a table of texts, such as {claim = "pattern"}`)
	}
	m := map[string]string{}
	for k, one := range table {
		if m[k], ok = one.(string); !ok {
			return fmt.Errorf("has a value for %.60q that is not a text", k)
		}
	}
	to.Set(reflect.ValueOf(m))
	return nil
}

// defaults sets all fields of a struct to their defaults.
func defaults(to reflect.Value, all []setting) error {
	for _, s := range all {
		text, ok := s.field.Tag.Lookup("default")
		if !ok {
			continue
		}
		v, err := s.fromText(text)
		if err == nil {
			err = s.set(to.FieldByIndex(s.index), v)
		}
		if err != nil {
			return fmt.Errorf("the default of %s %w", s.key, err)
		}
	}
	return nil
}
