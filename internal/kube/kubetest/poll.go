package kubetest

import "time"

// Poll asks until done is true, and returns whether it was before the bound is over. What has taken long
// is asked for less often: each question costs the API server time that what is waited for needs.
func Poll(bound time.Duration, done func() bool) bool {
	for began := time.Now(); !done(); {
		taken := time.Since(began)
		if taken > bound {
			return false
		}
		time.Sleep(min(max(taken/10, 20*time.Millisecond), 500*time.Millisecond))
	}
	return true
}
