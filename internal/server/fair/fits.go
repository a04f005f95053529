package fair

// Fits reports whether somebody who has some of the places that are taken may have another one: it has at
// most half of those that others leave. However many places one fills, the next one finds some.
func Fits(has, taken, places int) bool {
	return taken < places && has < (places-(taken-has)+1)/2
}
