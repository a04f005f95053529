package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
)

// TOML returns the settings as a file that sets each of them: what turn serve --check-config
// prints. Load returns the same settings for it.
func (c *Config) TOML() (string, error) {
	var b strings.Builder
	section := ""
	of := reflect.ValueOf(c).Elem()
	for _, s := range configSettings() {
		if s.tables() != nil {
			continue
		}
		before, key, ok := strings.Cut(s.key, ".")
		if !ok {
			before, key = "", s.key
		}
		if before != section {
			section = before
			b.WriteString("\n[" + section + "]\n")
		}
		if err := line(&b, key, s, of.FieldByIndex(s.index)); err != nil {
			return "", err
		}
	}
	for _, list := range configSettings() {
		all := of.FieldByIndex(list.index)
		for n := 0; list.tables() != nil && n < all.Len(); n++ {
			b.WriteString("\n[[" + list.key + "]]\n")
			for _, s := range list.tables() {
				if err := line(&b, s.key, s, all.Index(n).FieldByIndex(s.index)); err != nil {
					return "", err
				}
			}
		}
	}
	return b.String(), nil
}

// line writes one setting. What is unset and has no default is left out.
func line(b *strings.Builder, key string, s setting, v reflect.Value) error {
	value := v.Interface()
	switch x := value.(type) {
	case time.Duration:
		value = x.String()
	case turnstone.Bytes:
		value = x.String()
	case string:
		if x == "" && s.field.Tag.Get("default") != "" {
			value = none
		} else if x == "" {
			return nil
		}
	case []string:
		if len(x) == 0 {
			return nil
		}
	case map[string]string:
		if len(x) > 0 {
			return table(b, key, x)
		}
		return nil
	}
	text, err := toml.Marshal(map[string]any{key: value})
	if err != nil {
		return turnstone.NewError("server.config", turnstone.KindInternal, s.key, err)
	}
	b.Write(text)
	return nil
}

// table writes a table in one line, which stays in the table of its issuer.
func table(b *strings.Builder, key string, m map[string]string) error {
	text, err := toml.Marshal(m)
	if err != nil {
		return turnstone.NewError("server.config", turnstone.KindInternal, key, err)
	}
	b.WriteString(key + " = {" +
		strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ") + "}\n")
	return nil
}
