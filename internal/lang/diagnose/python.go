package diagnose

import (
	"strings"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

var (
	pyFrame = lazyregexp.New(`^( *)File "(.*?)", line (\d+)`)
	pyError = lazyregexp.New(`^[A-Za-z_][\w.]*(: .*|:)?$`)
	pyGroup = lazyregexp.New(`^ +[|+](-\+-+| |$)`) // the left edge of an exception group
)

const (
	pyTraceback = "Traceback (most recent call last):"
	pyDuring    = "During handling of the above exception, another exception occurred:"
	pyCause     = "The above exception was the direct cause of the following exception:"
	pyLookahead = 40 // lines of a message that are skipped to find the next exception
)

// scanPython parses a traceback (Python's library reference, module traceback) with its chained
// exceptions, or a syntax error, which has a position and no traceback.
func scanPython(_ *search, ls []string, i int) (*report, int) {
	first := pyText(ls[i])
	if !strings.HasSuffix(first, pyTraceback) && !pyFrame.MatchString(first) {
		return nil, 0
	}
	r := &report{tool: "python"}
	for {
		if strings.HasSuffix(pyText(ls[i]), pyTraceback) {
			i++
		}
		frames, message, next := pyBlock(ls, i)
		if len(r.frames) > 0 {
			r.earlier = append(r.earlier, r.frames...)
			r.earlier = r.earlier[max(0, len(r.earlier)-4*maxFrames):]
		}
		r.frames, i = frames, next
		if message != "" {
			r.message = message
		}
		chained, ok := pyChained(ls, i)
		if !ok {
			break
		}
		i = chained
	}
	if r.message == "" {
		return nil, 0
	}
	r.whole = len(r.frames) > 0
	return r, i
}

// pyText returns a line without the left edge of exception groups.
func pyText(line string) string {
	if m := pyGroup.FindStringSubmatch(line); m != nil {
		return line[len(m[0]):]
	}
	return line
}

// pyBlock parses the frames from line i on, and the message below them.
func pyBlock(ls []string, i int) (frames []frame, message string, next int) {
	for i < len(ls) {
		line := pyText(ls[i])
		m := pyFrame.FindStringSubmatch(line)
		if m == nil {
			// [Previous line repeated 9 more times]
			if strings.HasPrefix(line, "  ") && len(frames) > 0 {
				i++
				continue
			}
			if pyError.MatchString(line) {
				return frames, line, i + 1
			}
			return frames, "", i
		}
		f := frame{from: pySource(m[2]), name: m[2], line: number(m[3]), mark: -1}
		i++
		indent := m[1] + "  "
		for first := true; i < len(ls); i, first = i+1, false {
			line := pyText(ls[i])
			if !strings.HasPrefix(line, indent) || pyFrame.MatchString(line) {
				break
			}
			if first {
				f.quoteOf(line, pyText(at(ls, i+1)))
			}
		}
		if f.from != nowhere {
			frames = append(frames, f)
		}
	}
	return frames, "", i
}

// pySource returns the source of the code that Python names; nowhere if it is not the author's
// text.
func pySource(name string) source {
	switch {
	case name == "<string>":
		return argument
	case name == "<stdin>":
		return input
	case strings.HasPrefix(name, "<"):
		return nowhere
	}
	return file
}

// pyChained returns the start of the next exception's frames, if that exception was caused by the
// exception whose message ends before line i.
func pyChained(ls []string, i int) (int, bool) {
	for end := min(len(ls), i+pyLookahead); i < end; i++ {
		line := strings.TrimSpace(pyText(ls[i]))
		if line == pyDuring || line == pyCause {
			for i++; i < len(ls) && strings.TrimSpace(pyText(ls[i])) == ""; i++ {
			}
			return i, i < len(ls) &&
				(strings.HasSuffix(pyText(ls[i]), pyTraceback) ||
					pyFrame.MatchString(pyText(ls[i])))
		}
		if strings.HasSuffix(line, pyTraceback) {
			break
		}
	}
	return 0, false
}
