package replay

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// TestWithin: a resumed turn has no more than its caller may use now.
func TestWithin(t *testing.T) {
	rec := &turnstone.TurnRecord{Timeout: time.Minute,
		Shape: turnstone.Shape{CPUs: 2, Memory: 3 << 30, Disk: 4 << 30}}
	for name, c := range map[string]struct {
		req ResumeRequest
		ok  bool
	}{
		"no bounds": {ResumeRequest{}, true},
		"the same": {ResumeRequest{MostTime: time.Minute,
			Most: turnstone.Machine{CPUs: 2, Memory: 3 << 30, Disk: 4 << 30}}, true},
		"fewer CPUs":   {ResumeRequest{Most: turnstone.Machine{CPUs: 1}}, false},
		"less memory":  {ResumeRequest{Most: turnstone.Machine{Memory: 1 << 30}}, false},
		"less disk":    {ResumeRequest{Most: turnstone.Machine{Disk: 1 << 30}}, false},
		"shorter time": {ResumeRequest{MostTime: time.Second}, false},
	} {
		if err := within(rec, &c.req); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
