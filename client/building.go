package client

import (
	"context"
	"fmt"
	"log/slog"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// defaultImage is the template of sandboxes whose caller names none.
const defaultImage = "base"

// A templateGetter answers what a server knows of a template.
type templateGetter interface {
	GetTemplate(context.Context, *connect.Request[v1.GetTemplateRequest]) (
		*connect.Response[v1.GetTemplateResponse], error)
}

// waitsFor returns the template or the image that a sandbox may have to wait for; "" if the caller does
// not name it and its session may have another one than the default.
func (c *Client) waitsFor(o SandboxOptions) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Image != "" {
		c.named = true
		return o.Image
	}
	if o.NoSession || o.Session == "" && !c.named {
		return defaultImage
	}
	return ""
}

// sayIfBuilt says that a sandbox waits for the build of its template, which takes minutes in which the
// server answers nothing. It asks the server beside the creation, which it does not delay. Call done
// when the creation has ended.
func sayIfBuilt(ctx context.Context, templates templateGetter, image string, say func(string)) (done func()) {
	if image == "" {
		return func() {}
	}
	if say == nil {
		say = func(line string) { slog.Default().InfoContext(ctx, "turnstone: "+line) }
	}
	ctx, cancel := context.WithCancel(ctx)
	end := make(chan struct{})
	go func() {
		defer close(end)
		a, err := templates.GetTemplate(ctx, connect.NewRequest(&v1.GetTemplateRequest{Template: image}))
		template := api.IsTemplateName(image)
		switch {
		case ctx.Err() != nil:
		case err == nil && a.Msg.Template.GetState() == v1.TemplateState_TEMPLATE_STATE_BUILT:
		case err != nil && (template || turnstone.KindOf(err) != turnstone.KindNotFound):
			// The creation tells of other errors, except those of a token that may not see templates.
		case template:
			say(fmt.Sprintf("template %s is not built yet: the server builds it, which takes some minutes",
				image))
		default:
			say(fmt.Sprintf("image %s is not here yet: the server pulls it and prepares it, which takes "+
				"some minutes", image))
		}
	}()
	return func() { cancel(); <-end }
}
