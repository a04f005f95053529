package template

import (
	"bytes"
	"io/fs"
	"slices"

	"turnstone.dev/turnstone/internal/template/builtin"
)

// builtInOrder is the built-in images, each after what it lies on and before larger ones.
var builtInOrder = []string{"base", "python", "nodejs", "claude-code"}

// provided says which programs come of what a built-in spec names: a package, or a part of
// a command. What a spec does not name any more it does not provide. Tests hold the list
// against the specs, and against the images where these are built.
var provided = []struct {
	named    string
	programs []string
}{
	{`"ca-certificates"`, nil},
	{`"curl"`, []string{"curl"}},
	{`"iproute2"`, []string{"ip", "ss"}},
	{`"jq"`, []string{"jq"}},
	{`"less"`, []string{"less"}},
	{`"procps"`, []string{"free", "pgrep", "pkill", "ps", "top", "uptime", "watch"}},
	{`"unzip"`, []string{"unzip"}},
	{`"xz-utils"`, []string{"unxz", "xz", "xzcat"}},
	{`"python-is-python3"`, []string{"python"}},
	{`"python3"`, []string{"python3"}},
	{`"python3-pip"`, []string{"pip", "pip3"}},
	{`"python3-venv"`, nil},
	{`package/bin/node`, []string{"node"}},
	{`/usr/local/bin/npm`, []string{"npm"}},
	{`/usr/local/bin/npx`, []string{"npx"}},
	{`"@anthropic-ai/claude-code@`, []string{"claude"}},
}

// WithProgram returns the smallest built-in image that has the program, by its name, or "".
func WithProgram(program string) string {
	for _, image := range builtInOrder {
		if HasProgram(image, program) {
			return image
		}
	}
	return ""
}

// OtherWithProgram is WithProgram for a program that image is not known to have; "" when it has it.
func OtherWithProgram(image, program string) string {
	if HasProgram(image, program) {
		return ""
	}
	return WithProgram(program)
}

// HasProgram tells whether the built-in image is known to have the program. Of what every
// Debian has, and of other images, nothing is known.
func HasProgram(image, program string) bool {
	if !slices.Contains(builtInOrder, image) {
		return false
	}
	spec, err := fs.ReadFile(builtin.FS, image+"/"+SpecFile)
	if err != nil {
		return false
	}
	for _, p := range provided {
		if slices.Contains(p.programs, program) && names(spec, p.named) {
			return true
		}
	}
	for _, base := range builtInOrder {
		if names(spec, `base = "`+base+`"`) {
			return HasProgram(base, program)
		}
	}
	return false
}

// names tells whether a spec has a text, not in a comment.
func names(spec []byte, text string) bool {
	for line := range bytes.Lines(spec) {
		if code, _, _ := bytes.Cut(line, []byte("#")); bytes.Contains(code, []byte(text)) {
			return true
		}
	}
	return false
}
