package main

import (
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template"
)

// tellEvery is how often a fetch is told of where there is no live line.
const tellEvery = 10 * time.Second

// Building shows how far the build of a template is: on a terminal in the live line,
// elsewhere in a line now and then.
func (p *progress) Building(e template.Event) {
	if e.Item == "" {
		return // Preparing tells of phases
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.style.live {
		p.detail = bar(e)
		return
	}
	if now := p.now(); now.Sub(p.told) >= tellEvery {
		p.told = now
		p.say("%s", e)
	}
}

// barWidth is the width of a bar, in columns.
const barWidth = 20

// bar draws a fetch.
func bar(e template.Event) string {
	var b strings.Builder
	if e.Total > 0 {
		done := int(min(e.Done, e.Total) * barWidth / e.Total)
		putf(&b, "[%s%s] %3d%% ", strings.Repeat("#", done), strings.Repeat(" ", barWidth-done), min(e.Done, e.Total)*100/e.Total)
	}
	putf(&b, "%s %s", printable(e.Item), turnstone.Bytes(e.Done).Human())
	if e.Rate > 0 {
		putf(&b, ", %s/s", turnstone.Bytes(e.Rate).Human())
	}
	return b.String()
}
