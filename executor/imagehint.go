package executor

import (
	"errors"
	"fmt"
	"path"

	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

// notFound is what bash, dash and env say of a program that is not there.
var notFound = lazyregexp.New(`(?:^|[ /'‘"])([A-Za-z0-9._+-]{1,64})(?:: (?:command )?not found|['’"]?: No such file or directory)$`)

// missing returns the program that a failing command did not find, or "".
func missing(f *turnstone.FailureReport) string {
	if f.ExitCode != 127 {
		return ""
	}
	if m := notFound.FindStringSubmatch(f.Message); m != nil {
		return m[1]
	}
	if words := strings.Fields(f.Text); len(words) > 0 {
		return path.Base(words[0])
	}
	return ""
}

// noteImage says in a failed step's note which built-in image has a program that was not
// found. Names are those of the list that package template has: a guest's words only choose.
func (r *run) noteImage(step *document.Step, res *document.StepResult) {
	c := r.commands[step.Index-1]
	if c == nil || res.Status != turnstone.StepFailed {
		return
	}
	for _, f := range slices.Backward(c.failures) {
		if hint := imageWith(r.plan.image, missing(&f)); hint != "" {
			if res.Note != "" {
				hint = "; " + hint
			}
			res.Note += hint
			return
		}
	}
}

// imageWith is a hint for a program that the image has not, or "".
func imageWith(image, program string) string {
	other := template.WithProgram(program)
	if other == "" || template.HasProgram(image, program) {
		return ""
	}
	return fmt.Sprintf("image: %s has %s", other, program)
}

// hintImage gives an error about a program that could not be started the same hint.
func hintImage(image, program string, err error) error {
	var fault *turnstone.Error
	if errors.As(err, &fault) && fault.Op == wire.MethodProcessStart && fault.Kind == turnstone.KindNotFound && fault.Subject == program {
		if other := template.WithProgram(program); other != "" && !template.HasProgram(image, program) {
			fault.Hint = fmt.Sprintf("--image %s has %s", other, program)
		}
	}
	return err
}
