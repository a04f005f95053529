// Package builtin holds the specs of the built-in templates, one folder each.
package builtin

import "embed"

// FS contains <name>/template.toml for each built-in template, and the files that it names.
//
//go:embed */template.toml code-interpreter/code_interpreter.py
var FS embed.FS
