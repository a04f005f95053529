package pg

import (
	"net/url"
	"time"

	"turnstone.dev/turnstone"
)

// leaseParameter is the parameter of a URL that says how long leases last. PostgreSQL knows no such
// parameter.
const leaseParameter = "lease"

// Bounds of the parameter: renewals of shorter leases would be most of the database's work, and of
// longer ones what a lost machine leaves would wait for hours.
const (
	leastLease = 3 * time.Second
	mostLease  = time.Hour
)

// Lease returns how long leases last in the database at s, as its parameter lease says, such as 30s; 0:
// it does not say. The error is of kind Invalid.
func Lease(s string) (time.Duration, error) {
	u, err := url.Parse(s)
	if err != nil || !u.Query().Has(leaseParameter) {
		return 0, nil // Open reports the first
	}
	text := u.Query().Get(leaseParameter)
	life, err := time.ParseDuration(text)
	if err != nil || life < leastLease || life > mostLease {
		return 0, turnstone.Errorf("pg.url", turnstone.KindInvalid, Name(s),
			"its parameter lease is %.40q, and not between %s and %s", text, leastLease, mostLease).
			WithHint("write lease=60s, the same at all machines")
	}
	return life, nil
}

// withoutLease returns the URL for PostgreSQL.
func withoutLease(s string) string {
	u, err := url.Parse(s)
	if err != nil || !u.Query().Has(leaseParameter) {
		return s
	}
	q := u.Query()
	q.Del(leaseParameter)
	u.RawQuery = q.Encode()
	return u.String()
}
