package plan

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/template"
)

// A claim describes one field of document.FrontMatter or document.NetworkRules, and whether a
// document can use it to widen what its turn may do. A test checks that every field has a claim.
type claim struct {
	field string
	key   string // of config.GrantKeys; empty: the field only narrows, and why is the reason
	why   string
	// returns the requests that are not granted; the caller fills in Key
	asks func(a *Authority) []turnstone.Ask
}

// frontClaims classifies all fields of a document. docs/security.md has the same table.
func frontClaims() []claim {
	return []claim{
		{field: "Image", key: "image", asks: (*Authority).image},
		{field: "Env", why: "variables of the sandbox's processes, which choose their own anyway"},
		{field: "Files", key: "files", asks: (*Authority).files},
		{field: "Cwd", why: "a directory of the sandbox"},
		{field: "Timeout", why: "[limits] bound it"},
		{field: "CPUs", why: "[limits] bound them"},
		{field: "Memory", why: "[limits] bound it"},
		{field: "Disk", why: "[limits] bound it"},
		{field: "Network", key: "network", asks: (*Authority).network},
		{field: "NetworkRules", why: "its fields are claims of their own"},
		{field: "Isolation", why: "it only refuses substrates"},
		{field: "Deterministic", why: "it narrows"},
		{field: "Tier", why: "it only refuses substrates"},
		{field: "Seed", why: "random numbers of the sandbox"},
		{field: "Clock", why: "the clock of the sandbox"},
		{field: "Session", key: "session", asks: (*Authority).session},
		{field: "Branch", key: "session", asks: (*Authority).branch},
		{field: "Lifetime", key: "lifetime", asks: (*Authority).lifetime},
		{field: "Home", key: "home", asks: (*Authority).home},
		{field: "Snapshot", key: "snapshot", asks: (*Authority).snapshot},
		{field: "Checkpoint", why: "what its steps left is kept with the turn, as at its end"},
		{field: "Retry", why: "node.retries bounds it, and the turn uses no more than it was granted"},

		{field: "NetworkRules.Allow", key: "network", asks: (*Authority).allow},
		{field: "NetworkRules.Deny", why: "it narrows"},
		{field: "NetworkRules.HasAllow", why: "it narrows"},
		{field: "NetworkRules.Record",
			why: "what the turn got is kept with the turn, within bounds"},
		{field: "NetworkRules.Replay", why: "the network is not touched"},
		// checked when the session is known: see netrecord
		{field: "NetworkRules.ReplayOf", key: "network"},
		{field: "NetworkRules.Intercept", why: "the host's authorities verify the same hosts"},
		{field: "NetworkRules.NoHostCA", why: "it narrows"},
	}
}

// An Authority decides which of a document's requests are granted.
type Authority struct {
	Request Request
	Host    Host
	Replays bool // the request repeats a turn; a record may be imported, so it grants nothing
}

// front returns the document's front matter.
func (a *Authority) front() document.FrontMatter { return a.Request.Document.Front }

// Granted reports whether all requests of a document under key are granted unchanged.
func (a *Authority) Granted(key string) bool {
	return slices.Contains(a.Request.Grant, key) || slices.Contains(a.Host.Documents.Grant, key)
}

// missing lists the requests that are not granted, in the order of frontClaims.
func (a *Authority) missing() []turnstone.Ask {
	var all []turnstone.Ask
	for _, c := range frontClaims() {
		if c.asks == nil || a.Granted(c.key) {
			continue
		}
		for _, ask := range c.asks(a) {
			ask.Key = c.key
			if doc := a.Request.Document; doc.Inherits(c.key) {
				ask.Place = doc.Defaults.Place
			}
			all = append(all, ask)
		}
	}
	return all
}

// Check rejects a request whose document needs a grant that is missing. It checks the keys of only,
// or all keys if only is empty.
func (a *Authority) Check(only ...string) error {
	for _, key := range a.Request.Grant {
		if !slices.Contains(config.GrantKeys, key) {
			return turnstone.Errorf("executor.grants", turnstone.KindInvalid, "--grant "+key,
				"is not a key that can be granted").
				WithHint("use one of " + strings.Join(config.GrantKeys, ", "))
		}
	}
	missing := slices.DeleteFunc(a.missing(), func(ask turnstone.Ask) bool {
		return len(only) > 0 && !slices.Contains(only, ask.Key)
	})
	if len(missing) == 0 {
		return nil
	}
	var what, flags, keys []string
	name, who := a.Request.Document.Name, "document"
	if !slices.ContainsFunc(missing, func(ask turnstone.Ask) bool { return ask.Place == "" }) {
		name, who = missing[0].Place, "manifest"
	}
	for _, ask := range missing {
		if ask.Place != "" && who == "document" {
			ask.What = inPlace(ask.What, ask.Place)
		}
		what = append(what, ask.What)
		if !slices.Contains(flags, ask.Flag) {
			flags = append(flags, ask.Flag)
		}
		if !slices.Contains(keys, ask.Key) {
			keys = append(keys, ask.Key)
		}
	}
	if a.Replays { // a replay has no other flags
		flags = nil
	}
	if a.Request.Remote && !slices.ContainsFunc(keys, callersGrant) {
		return notGrantedHere(name, strings.Join(clipList(what), "; "), keys)
	}
	return notGranted(name, who, strings.Join(clipList(what), "; "),
		strings.Join(clipList(flags), " "), strings.Join(keys, ","))
}

// notGranted returns the error about a document, or a manifest, that lacks grants.
func notGranted(name, who, what, flags, keys string) error {
	hint := "add --grant " + keys + ", which grants the " + who + "'s requests unchanged"
	if flags != "" && flags != "--grant "+keys {
		hint = "add " + flags + "; or " + strings.TrimPrefix(hint, "add ")
	}
	return turnstone.Errorf("executor.grants", turnstone.KindInvalid, name,
		"the %s asks for what only its caller can grant: %s", who, what).WithHint(hint)
}

// callersGrant reports whether a caller on another machine grants a document's requests under key.
func callersGrant(key string) bool { return key == "session" || key == "home" || key == "files" }

// notGrantedHere returns the error about a remote turn: no flag of its caller is a grant.
func notGrantedHere(name, what string, keys []string) error {
	quoted := make([]string, len(keys))
	for i, key := range keys {
		quoted[i] = strconv.Quote(key)
	}
	return turnstone.Errorf("executor.grants", turnstone.KindInvalid, name,
		"the host does not grant what the turn asks for: %s", what).
		WithHint("leave it out, or ask the host's operator for it: grant = [" +
			strings.Join(quoted, ", ") + "] in [documents] of config.toml")
}

// clipList bounds the part of a list in a message.
func clipList(list []string) []string {
	const most = 5
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
}

// named returns the request for a name that a flag or a pattern of the host grants.
func named(key, asked, flag string, patterns []string) []turnstone.Ask {
	matches := func(p string) bool { ok, _ := path.Match(p, asked); return ok }
	if asked == "" || flag != "" || slices.ContainsFunc(patterns, matches) {
		return nil
	}
	return []turnstone.Ask{{What: key + ": " + asked, Flag: "--" + key + " " + asked}}
}

func (a *Authority) session() []turnstone.Ask {
	return named("session", a.front().Session, a.Request.Session, a.Host.Documents.Sessions)
}

// branch requests another branch than main of a session that the caller named. A session that the
// host grants is granted with its branches.
func (a *Authority) branch() []turnstone.Ask {
	front := a.front()
	if front.Branch == DefaultBranch || a.Request.Session == "" && len(a.session()) == 0 {
		return nil
	}
	return named("branch", front.Branch, a.Request.Branch, nil)
}

func (a *Authority) home() []turnstone.Ask {
	return named("home", a.front().Home, a.Request.Home, a.Host.Documents.Homes)
}

// lifetime: a paused machine occupies memory of the host after its turn.
func (a *Authority) lifetime() []turnstone.Ask {
	if a.front().Lifetime != turnstone.LifetimeSession {
		return nil
	}
	return named("lifetime", string(turnstone.LifetimeSession), string(a.Request.Lifetime), nil)
}

// snapshot: a kept machine occupies as much disk as the machine has memory, for each turn.
func (a *Authority) snapshot() []turnstone.Ask {
	if a.front().Snapshot != document.SnapshotVM {
		return nil
	}
	return named("snapshot", string(document.SnapshotVM), string(a.Request.Snapshot), nil)
}

// files: a document from a pipe has no folder; the caller's directory is not the document's. A flag
// that adds the same file does not grant the document's request.
func (a *Authority) files() []turnstone.Ask {
	if !a.Request.Piped {
		return nil
	}
	var asks []turnstone.Ask
	for _, f := range a.front().Files {
		asks = append(asks, turnstone.Ask{What: "files: " + f, Flag: "--grant files"})
	}
	return asks
}

// image: a registry on a private network, which turn itself would contact. Other registries are
// asked without the user's credentials: see Anonymous.
func (a *Authority) image() []turnstone.Ask {
	front := a.front()
	if a.Request.Image != "" || !template.IsImage(front.Image) || a.registry(front.Image) {
		return nil
	}
	if why := template.ClosedRegistry(front.Image); why != "" {
		return []turnstone.Ask{{What: "image: " + front.Image + " (" + why + ")",
			Flag: "--image " + front.Image}}
	}
	return nil
}

// registry reports whether the host's configuration names the registry of an image.
func (a *Authority) registry(image string) bool { return configured(a.Host, image) }

// Anonymous reports whether an image is requested without credentials, because only a document, or
// the state of an earlier turn, names the image.
func (a *Authority) Anonymous() bool {
	return a.Request.Image == "" && !a.Granted("image") && strangers(a.Host, a.front().Image)
}

// strangersState is Anonymous for the image of a turn's initial state: the session may be imported,
// so its state is as untrusted as a document. An image that the user pulled by its name is known.
func (a *Authority) strangersState(image string, known func(string) bool) bool {
	named := a.Request.Image != "" && template.SameImage(a.Request.Image, image)
	return !named && !a.Granted("image") && strangers(a.Host, image) && !known(image)
}

// strangers reports whether name is an image of a registry that the host's configuration does not
// name.
func strangers(host Host, name string) bool {
	return template.IsImage(name) && !configured(host, name)
}

func configured(host Host, image string) bool {
	at := template.RegistryOf(image)
	return slices.ContainsFunc(host.Images.Registries, func(r string) bool {
		return strings.EqualFold(r, at)
	})
}

// network: a network on a host whose default is off.
func (a *Authority) network() []turnstone.Ask {
	if on := a.front().Network; on == nil || !*on || a.Request.Network != nil ||
		a.Host.Network.Default != "off" || a.replays() {
		return nil
	}
	rules := a.front().NetworkRules
	const what = "network: {…}, a network, where the host's default is off"
	switch {
	case rules == nil:
		return []turnstone.Ask{{What: "network: on", Flag: "--network on"}}
	case rules.Record: // with another mode the caller would switch the recording off
		return []turnstone.Ask{{What: what, Flag: "--network record"}}
	}
	return []turnstone.Ask{{What: what, Flag: "--network on"}}
}

// allow lists the rules that open closed addresses. A rule with a name, which could open private
// addresses, opens only public addresses: see documentsPolicy.
func (a *Authority) allow() []turnstone.Ask {
	if !a.ownRules() || a.replays() {
		return nil
	}
	var asks []turnstone.Ask
	for _, c := range netplan.Ungranted(a.Host.Config, a.front().NetworkRules.Allow) {
		asks = append(asks, turnstone.Ask{What: "network: allow: " + c.Rule, Flag: "--allow " + c.Rule})
	}
	return asks
}

// replays reports whether the turn is served from a recording, without any network.
func (a *Authority) replays() bool {
	_, mode := mergeRules(a.Request, a.front())
	return mode.Replay
}

// ownRules reports whether the document's allow has an effect, and not the caller's.
func (a *Authority) ownRules() bool {
	rules := a.front().NetworkRules
	return rules != nil && rules.HasAllow &&
		(a.Request.NetworkRules == nil || !a.Request.NetworkRules.HasAllow)
}

// onlyAsked reports whether only the document requests its network rules.
func (a *Authority) onlyAsked() bool {
	return a != nil && a.ownRules() && !a.Granted("network")
}

// ResumesNetwork reports whether a machine with a network card gets a network, by its caller's
// request, the document's, and the host's default. A mode without a network grants none.
func (a *Authority) ResumesNetwork() bool {
	said := a.front().Network
	if a.Request.Network != nil {
		return *a.Request.Network
	}
	if said != nil && !*said {
		return false
	}
	return a.Host.Network.Default != "off" || said != nil && a.Granted("network")
}
