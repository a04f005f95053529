package backup

// HoldGC is holdGC, for tests.
var HoldGC = holdGC
