package template

// Guest returns the system of a template's root image, such as "bookworm-amd64"; empty: an image of
// a registry, which says nothing about it.
func (s *Spec) Guest() string {
	at := s
	for below := at.below(); below != nil; below = at.below() {
		at = below
	}
	if at.Base != debianBase+"bookworm" {
		return ""
	}
	return "bookworm-amd64"
}
