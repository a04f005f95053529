package diagnose

import "turnstone.dev/turnstone/internal/lazyregexp"

// notFound matches the messages of bash, dash and env about a missing program.
var notFound = lazyregexp.New(`(?:^|[ /'‘"])([A-Za-z0-9._+-]{1,64})(?:: (?:command )?not found|['’"]?: No such file or directory)$`)

// MissingProgram returns the program that a line of a shell or of env reports as missing, or "".
func MissingProgram(line string) string {
	if m := notFound.FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}
