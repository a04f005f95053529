package terminal

import (
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// tellEvery is the interval between reports of a fetch without a live line.
const tellEvery = 10 * time.Second

// Building shows the progress of a template's build: on a terminal in the live line, otherwise in a
// line from time to time.
func (p *Progress) Building(e turnstone.BuildEvent) {
	if e.Item == "" {
		return // Preparing reports phases
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
func bar(e turnstone.BuildEvent) string {
	var b strings.Builder
	if e.Total > 0 {
		done := int(min(e.Done, e.Total) * barWidth / e.Total)
		Printf(&b, "[%s%s] %3d%% ", strings.Repeat("#", done), strings.Repeat(" ", barWidth-done),
			min(e.Done, e.Total)*100/e.Total)
	}
	Printf(&b, "%s %s", Printable(e.Item), turnstone.Bytes(e.Done).Human())
	if e.Rate > 0 {
		Printf(&b, ", %s/s", turnstone.Bytes(e.Rate).Human())
	}
	return b.String()
}
