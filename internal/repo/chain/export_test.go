package chain

// CheckClock is for tests, which cannot set the host's clock.
var CheckClock = checkClock
