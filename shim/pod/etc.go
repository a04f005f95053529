package pod

import (
	"bytes"
	"context"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/wire"
)

// etcDir has the files of a pod that its containers share.
const etcDir = guest.Dir + "/etc"

// writeEtc writes the files that containers get unless they have mounts there.
func (p *Pod) writeEtc(ctx context.Context) error {
	address := ""
	if p.net != nil {
		address, _, _ = strings.Cut(p.net.Address, "/")
	}
	files := map[string]string{
		"resolv.conf": resolvConf(p.asked.DNS),
		"hostname":    p.asked.Hostname + "\n",
		"hosts":       hosts(address, p.asked.Hostname),
	}
	var all errgroup.Group
	for name, text := range files {
		all.Go(func() error {
			c := p.sb.Client()
			return c.Feed(bytes.NewReader([]byte(text)), func(id wire.StreamID) error {
				_, err := c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{
					Path: path.Join(etcDir, name), Stream: id, Mode: 0o644, Parents: true})
				return err
			})
		})
	}
	return all.Wait()
}

// resolvConf returns the content of /etc/resolv.conf: the host's, if the pod says nothing.
func resolvConf(c *cri.DNSConfig) string {
	if len(c.GetServers())+len(c.GetSearches())+len(c.GetOptions()) == 0 {
		text, _ := os.ReadFile("/etc/resolv.conf")
		return string(text)
	}
	var b strings.Builder
	line := func(words ...string) {
		for _, w := range words {
			if strings.ContainsAny(w, "\n\x00") {
				return
			}
		}
		b.WriteString(strings.Join(words, " ") + "\n")
	}
	if s := c.GetSearches(); len(s) > 0 {
		line(slices.Concat([]string{"search"}, s)...)
	}
	for _, s := range c.GetServers() {
		line("nameserver", s)
	}
	if o := c.GetOptions(); len(o) > 0 {
		line(slices.Concat([]string{"options"}, o)...)
	}
	return b.String()
}

func hosts(address, name string) string {
	text := "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
	if address != "" && name != "" {
		text += address + "\t" + name + "\n"
	}
	return text
}

// addEtc mounts the pod's files where the container mounts nothing. The first mounts come first: a
// mount above them hides them.
func (c *Container) addEtc() {
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		target := "/etc/" + name
		if !slices.ContainsFunc(c.spec.Mounts, func(m guest.Mount) bool { return covers(m, target) }) {
			c.spec.Mounts = append(c.spec.Mounts, guest.Mount{Type: "bind",
				Source: path.Join(etcDir, name), Target: target, File: true})
		}
	}
}

// covers reports whether m hides what is at target.
func covers(m guest.Mount, target string) bool {
	return m.Target == target || m.Target == "/etc" || m.Target == "/"
}
