package receipt

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/diagnose"
)

// missing returns the program that a failing command did not find, or "".
func missing(f *turnstone.FailureReport) string {
	if f.ExitCode != 127 {
		return ""
	}
	if program := diagnose.MissingProgram(f.Message); program != "" {
		return program
	}
	if words := strings.Fields(f.Text); len(words) > 0 {
		return path.Base(words[0])
	}
	return ""
}

// hintImage adds to a failed step's note an image that has the missing program.
func (st *Step) hintImage() {
	c := st.steps.commands[st.at]
	if c == nil || st.steps.opts.Image == nil || st.res.Status != turnstone.StepFailed {
		return
	}
	for _, f := range slices.Backward(c.failures) {
		program := missing(&f)
		if image := st.steps.opts.Image(program); image != "" {
			hint := fmt.Sprintf("image: %s has %s", image, program)
			if st.res.Note != "" {
				hint = "; " + hint
			}
			st.res.Note += hint
			return
		}
	}
}
