package builtin

import (
	"bytes"
	"io/fs"
	"slices"
)

// builtInOrder lists the built-in images, each after its base and before larger images.
var builtInOrder = []string{"base", "python", "nodejs", "claude-code", "code-interpreter"}

// A Provision lists the programs that a name in a built-in spec provides.
type Provision struct {
	named    string // a package, or a part of a command
	Programs []string
}

// Provisions returns the list of programs. A name that is no longer in the spec provides nothing.
// Tests compare the list with the specs, and with the images if these are built.
func Provisions() []Provision { return provided }

var provided = []Provision{
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
	{`"python3-ipykernel"`, nil},
	{`"python3-jupyter-client"`, nil},
	{`"python3-tornado"`, nil},
	{`package/bin/node`, []string{"node"}},
	{`/usr/local/bin/npm`, []string{"npm"}},
	{`/usr/local/bin/npx`, []string{"npx"}},
	{`"@anthropic-ai/claude-code@`, []string{"claude"}},
	{`"build-essential"`, []string{"g++", "gcc", "make"}},
	{`"cargo-web"`, []string{"cargo"}},
	{`"fd-find"`, []string{"fdfind"}},
	{`/usr/local/bin/fd"`, []string{"fd"}},
	{`"git"`, []string{"git"}},
	{`"openssh-client"`, []string{"scp", "sftp", "ssh"}},
	{`"ripgrep"`, []string{"rg"}},
	{`"rustc-web"`, []string{"rustc"}},
	{`"uv==`, []string{"uv", "uvx"}},
	{`"uv-`, []string{"uv", "uvx"}},
}

// withProgram returns the smallest built-in image that has the program, by its name, or "".
func withProgram(program string) string {
	for _, image := range builtInOrder {
		if HasProgram(image, program) {
			return image
		}
	}
	return ""
}

// OtherWithProgram is withProgram, except that it returns "" if image is known to have the program.
func OtherWithProgram(image, program string) string {
	if HasProgram(image, program) {
		return ""
	}
	return withProgram(program)
}

// HasProgram reports whether the built-in image is known to have the program. It knows nothing
// about the programs of every Debian, or about other images.
func HasProgram(image, program string) bool {
	if !slices.Contains(builtInOrder, image) {
		return false
	}
	spec, err := fs.ReadFile(FS, image+"/template.toml")
	if err != nil {
		return false
	}
	for _, p := range provided {
		if slices.Contains(p.Programs, program) && names(spec, p.named) {
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

// names reports whether a spec contains a text outside of comments.
func names(spec []byte, text string) bool {
	for line := range bytes.Lines(spec) {
		if code, _, _ := bytes.Cut(line, []byte("#")); bytes.Contains(code, []byte(text)) {
			return true
		}
	}
	return false
}
