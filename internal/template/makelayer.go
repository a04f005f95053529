package template

import (
	"context"
	"io"
	"maps"
	"net"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/template/registry"
)

// canBuild returns an error of kind Unavailable if spec is layered and s has no LayerBuilder.
func (s *Store) canBuild(spec *Spec) error {
	if s.layers != nil || !spec.layered() {
		return nil
	}
	return s.failure(spec, turnstone.Errorf("template.build", turnstone.KindUnavailable, "",
		"it is built in a sandbox, which is not available here").
		WithHint("build the template: turn template build "+spec.Name))
}

// makeLayer builds the layered spec on base. The caller holds the digest's lock.
func (s *Store) makeLayer(ctx context.Context, spec *Spec, base *turnstone.Template,
	say func(string)) (err error) {
	w, err := s.begin(spec)
	if err != nil {
		return err
	}
	defer func() { w.end(err) }()
	tell := &teller{name: spec.Name, start: w.start, events: s.events}
	saying := func(what string) { say(what); tell.say(what) }
	reg, addr, err := s.openRegistry(spec, w.log, tell)
	if err != nil {
		return err
	}
	if reg != nil {
		defer reg.Close()
	}
	m := &manifest{}
	req := LayerRequest{Name: spec.Name, Base: base, Files: spec.Files,
		Env: append(buildEnv(reg, addr), spec.env()...), Port: addr,
		Shape: buildShape(spec), Temp: map[string][]byte{"apt.conf": aptConf(reg, addr)},
		Log: w.log, Skip: skipped, Settle: settled, Say: saying}
	if !spec.NoNetwork && len(spec.Network) > 0 {
		req.Allow = spec.Network
		if ca, _ := (hostca.Host{}).Bundle(); ca != nil {
			req.Temp["ca.pem"] = ca
			for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT",
				"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"} {
				req.Env = append(req.Env, name+"="+buildDir+"/ca.pem")
			}
		}
	}
	req.Steps = layerSteps(spec, reg, func(all map[string]string) { m.Packages = all })
	return s.layers.Build(ctx, req, func(l turnstone.TemplateLayer) error {
		l.Spec = w.digest
		lock := &Lock{Version: lockVersion, Spec: spec.unlocked().Digest(), FSHash: l.Tree.Hash,
			Apt: m.Packages}
		if reg != nil {
			lock.Pip, lock.Npm = reg.Pips(), reg.Npms()
		}
		if err := spec.Lock.verify(spec.Name, lock); err != nil {
			return err
		}
		m.Base, m.Layer, m.Lock = spec.below().Digest(), &l, lock
		return w.publish(m)
	})
}

// env returns the spec's own environment as KEY=VALUE, sorted.
func (s *Spec) env() []string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		list = append(list, k+"="+s.Env[k])
	}
	return list
}

// buildShape returns the shape of the machine that builds a spec: at least the spec's own.
func buildShape(spec *Spec) turnstone.Shape {
	shape := spec.Machine.Shape(turnstone.DefaultShape())
	def := turnstone.DefaultShape()
	shape.CPUs, shape.Memory, shape.Disk = max(shape.CPUs, def.CPUs), max(shape.Memory, def.Memory),
		max(shape.Disk, def.Disk)
	shape.Network = !spec.NoNetwork
	return shape
}

// openRegistry starts the server that replaces the package registries during the build; nil if the
// build may use none.
func (s *Store) openRegistry(spec *Spec, log io.Writer,
	tell *teller) (*registry.Server, net.Addr, error) {
	if spec.NoNetwork {
		return nil, nil, nil
	}
	o := registry.Options{Cache: s.packages, Pip: s.sources.Pip, Npm: s.sources.Npm,
		Apt: s.sources.Mirrors().Addresses(), Log: log, Fetched: func(f registry.Fetch) {
			tell.tell(turnstone.BuildEvent{Item: f.Name, Done: f.Done, Total: f.Size, Rate: f.Rate})
		}}
	if spec.Lock != nil {
		o.Locked, o.Pips, o.Npms = true, spec.Lock.Pip, spec.Lock.Npm
	}
	reg, err := registry.New(s.registry(o))
	if err != nil {
		return nil, nil, err
	}
	addr, err := reg.Listen()
	if err != nil {
		_ = reg.Close()
		return nil, nil, err
	}
	return reg, addr, nil
}

// unlocked returns the spec without its lock.
func (s *Spec) unlocked() *Spec {
	free := *s
	free.Lock = nil
	return &free
}
