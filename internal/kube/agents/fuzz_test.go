package agents

import (
	"encoding/json"
	"errors"
	"testing"

	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
)

// FuzzConvert checks that every object becomes a request within the control API's bounds, or is
// refused as unsupported.
func FuzzConvert(f *testing.F) {
	for _, s := range []string{`{}`,
		`{"metadata":{"name":"a","uid":"u"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"python:3.12",` +
			`"command":["sh"],"env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],` +
			`"resources":{"limits":{"cpu":"1500m","memory":"1Gi"}},"volumeMounts":[{"name":"v","mountPath":"/v"}]}],` +
			`"securityContext":{"runAsUser":1000,"runAsGroup":3000},"volumes":[{"name":"v","emptyDir":{}}]}}}}`,
		`{"spec":{"volumeClaimTemplates":[{"spec":{"resources":{"requests":{"storage":"9e18"}}}},` +
			`{"spec":{"resources":{"requests":{"storage":"9e18"}}}}],"podTemplate":{"spec":{"containers":[{"image":"x"}]}}}}`,
	} {
		f.Add([]byte(s))
	}
	o := &Options{Cluster: "c", Images: []Image{{"docker.io/", TemplatePrefix}}}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &sandboxv1.Sandbox{}
		if json.Unmarshal(text, s) != nil {
			return
		}
		r, _, err := o.convert(s)
		var no Unsupported
		if err != nil {
			if !errors.As(err, &no) {
				t.Fatalf("%v is not unsupported", err)
			}
			return
		}
		m := r.GetMachine()
		if len(r.Metadata) > maxMetadata || len(r.Env) > maxEnv || m.GetDisk() > mostDisk || m.GetMemory() > mostMemory ||
			m.GetCpus() > mostCPUs || r.Source == nil {
			t.Errorf("the request is out of bounds: %v", r)
		}
	})
}
