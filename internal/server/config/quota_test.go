package config

import "testing"

// TestQuota: what the table of a tenant does not name is as in quota, wherever that is set.
func TestQuota(t *testing.T) {
	c, err := Parse("/state", `
[[tenants]]
name = "acme"
sandboxes = 5
stored = "0"

[quota]
stored = "1GiB"
turns = 7
`, []string{"TURN_SERVER_QUOTA_CPUS=3"})
	check(t, err)
	if got, want := c.QuotaOf("acme"), (Quota{Sandboxes: 5, CPUs: 3, Turns: 7}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if got, want := c.QuotaOf("other"), (Quota{Sandboxes: 1000, CPUs: 3, Stored: 1 << 30,
		Turns: 7}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	c, err = Parse("/state", "", []string{`TURN_SERVER_TENANTS=[{name = "a", memory = "1GiB"}]`})
	check(t, err)
	if c.QuotaOf("a").Memory != 1<<30 || c.QuotaOf("a").Turns != 6000 {
		t.Errorf("%+v", c.Tenants)
	}
}
