// Package builtin holds the specs of the built-in templates, one folder each.
package builtin

import "embed"

// FS contains <name>/template.toml for each built-in template.
//
//go:embed */template.toml
var FS embed.FS
