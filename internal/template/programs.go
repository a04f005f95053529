package template

import (
	"bytes"
	"io/fs"
	"slices"

	"turnstone.dev/turnstone/internal/template/builtin"
)

// builtInOrder lists the built-in images, each after its base and before larger images.
var builtInOrder = []string{"base", "python", "nodejs", "claude-code"}

// provided lists the programs of each name in a built-in spec: a package, or a part of a command. A
// name that is no longer in the spec provides nothing. Tests compare the list with the specs, and
// with the images if these are built.
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

// withProgram returns the smallest built-in image that has the program, by its name, or "".
func withProgram(program string) string {
	for _, image := range builtInOrder {
		if hasProgram(image, program) {
			return image
		}
	}
	return ""
}

// OtherWithProgram is withProgram, except that it returns "" if image is known to have the program.
func OtherWithProgram(image, program string) string {
	if hasProgram(image, program) {
		return ""
	}
	return withProgram(program)
}

// hasProgram reports whether the built-in image is known to have the program. It knows nothing
// about the programs of every Debian, or about other images.
func hasProgram(image, program string) bool {
	if !slices.Contains(builtInOrder, image) {
		return false
	}
	spec, err := fs.ReadFile(builtin.FS, image+"/"+specFile)
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
			return hasProgram(base, program)
		}
	}
	return false
}

// names reports whether a spec contains a text outside of comments.
func names(spec []byte, text string) bool {
	for line := range bytes.Lines(spec) {
		if code, _, _ := bytes.Cut(line, []byte("#")); bytes.Contains(code, []byte(text)) {
			return true
		}
	}
	return false
}
