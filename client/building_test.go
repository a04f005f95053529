package client

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// getter answers with a state or an error, or never.
type getter struct {
	state v1.TemplateState
	err   error
	never bool
}

func (g getter) GetTemplate(ctx context.Context, r *connect.Request[v1.GetTemplateRequest]) (
	*connect.Response[v1.GetTemplateResponse], error) {
	if g.never {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if g.err != nil {
		return nil, g.err
	}
	return connect.NewResponse(&v1.GetTemplateResponse{
		Template: &v1.Template{Name: r.Msg.Template, State: g.state}}), nil
}

// TestBuilding checks what is said while a sandbox waits for its template.
func TestBuilding(t *testing.T) {
	gone := turnstone.Errorf("template.get", turnstone.KindNotFound, "it", "is gone")
	for _, c := range []struct {
		image string
		g     getter
		says  string
	}{
		{"python", getter{state: v1.TemplateState_TEMPLATE_STATE_MISSING}, "template python is not built yet"},
		{"python", getter{state: v1.TemplateState_TEMPLATE_STATE_BUILDING}, "template python is not built yet"},
		{"python:3.12", getter{err: gone}, "image python:3.12 is not here yet"},
		{"python:3.12", getter{state: v1.TemplateState_TEMPLATE_STATE_MISSING}, "image python:3.12"},
		{"python", getter{state: v1.TemplateState_TEMPLATE_STATE_BUILT}, ""},
		{"pithon", getter{err: gone}, ""},
		{"python", getter{err: turnstone.Errorf("template.get", turnstone.KindDenied, "it", "may not")}, ""},
		{"python", getter{never: true}, ""},
		{"", getter{}, ""},
	} {
		said := make(chan string, 1)
		done := sayIfBuilt(t.Context(), c.g, c.image, func(line string) { said <- line })
		if c.says != "" {
			if line := <-said; !strings.Contains(line, c.says) {
				t.Errorf("%s: %q", c.image, line)
			}
		}
		done()
		select {
		case line := <-said:
			t.Errorf("%s %+v: %q", c.image, c.g, line)
		default:
		}
	}
}

// TestWaitsFor checks of which template a caller hears who names none.
func TestWaitsFor(t *testing.T) {
	for _, c := range []struct {
		named bool
		o     SandboxOptions
		want  string
	}{
		{false, SandboxOptions{}, "base"}, {true, SandboxOptions{}, ""},
		{true, SandboxOptions{NoSession: true}, "base"}, {false, SandboxOptions{Session: "other"}, ""},
		{true, SandboxOptions{Image: "python"}, "python"},
	} {
		if got := (&Client{named: c.named}).waitsFor(c.o); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
