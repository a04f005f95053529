package doctor

import (
	"context"
	"fmt"
	"os"

	"turnstone.dev/turnstone/internal/hostca"
)

// authorities reports the certificate authorities that the host trusts in addition to the public
// ones: sandboxes with a network trust them too.
func (c *checker) authorities(context.Context) []Finding {
	h := hostca.Host{Root: c.root, Getenv: os.Getenv}
	const name = "certificates"
	if _, path := h.Bundle(); path == "" {
		return findingOf(name, StatusWarn,
			"this host has no certificate file: images, packages and intercepted TLS cannot be "+
				"verified",
			"sudo apt-get install --no-install-recommends -y ca-certificates")
	}
	own := h.Own()
	if len(own) == 0 {
		return findingOf(name, StatusOK, "the public authorities", "")
	}
	detail := fmt.Sprintf(
		"the public authorities and %d more, which sandboxes with a network also trust "+
			"(host_ca): %s", len(own), hostca.Name(own[0]))
	if len(own) > 1 {
		detail += fmt.Sprintf(" and %d more", len(own)-1)
	}
	return findingOf(name, StatusOK, detail, "")
}
