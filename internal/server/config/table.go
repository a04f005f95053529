package config

import (
	"fmt"
	"strings"
)

// Table returns the settings as the tables of docs/server.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| setting | value | default | meaning |\n|---|---|---|---|\n")
	rows(&b, "", configSettings())
	for _, s := range configSettings() {
		if s.tables() == nil {
			continue
		}
		b.WriteString("\nEach table `[[" + s.key + "]]` has:\n\n")
		b.WriteString("| setting | value | default | meaning |\n|---|---|---|---|\n")
		rows(&b, s.key+".", s.tables())
	}
	return b.String()
}

func rows(b *strings.Builder, prefix string, all []setting) {
	for _, s := range all {
		form := s.form()
		if words := s.field.Tag.Get("oneof"); words != "" {
			if form == "list" {
				form += " of"
			} else {
				form = ""
			}
			form = strings.TrimSpace(form + " `" + strings.ReplaceAll(words, ",", "`, `") + "`")
		}
		if low := s.field.Tag.Get("min"); low != "" {
			form += fmt.Sprintf(", %s to %s", low, s.field.Tag.Get("max"))
		}
		value := s.field.Tag.Get("default")
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", s.key, form, value,
			help[prefix+s.key])
	}
}
