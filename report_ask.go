package turnstone

// An Ask is something that a document asks for and that only its caller, or the host's
// configuration, grants.
type Ask struct {
	Key  string `json:"key"`  // that grants it as it stands: one such as "network"; empty: none does
	What string `json:"what"` // as front matter has it: "session: research"
	Flag string `json:"flag"` // of turn run that grants it: "--session research"
}
