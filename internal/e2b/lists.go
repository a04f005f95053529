package e2b

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Bounds of lists.
const (
	maxPage  = 100
	maxPages = 100 // that are read for a list in the order of starts
	// oldestFirst begins a token of a list in the order of starts; the place of its last sandbox follows.
	oldestFirst = "asc."
	nextHeader  = "X-Next-Token"
)

// A listQuery is what a list is asked for.
type listQuery struct {
	filter  *v1.SandboxFilter
	paused  bool // with paused sandboxes
	running bool // with running ones
	after   time.Time
	limit   int
	token   string
	asc     bool
}

var live = []v1.SandboxState{v1.SandboxState_SANDBOX_STATE_READY,
	v1.SandboxState_SANDBOX_STATE_RUNNING}

// parseList decodes a query.
func parseList(q url.Values) (*listQuery, error) {
	l := &listQuery{filter: &v1.SandboxFilter{States: live}, limit: maxPage, token: q.Get("nextToken")}
	if err := l.parseStates(q["state"]); err != nil {
		return nil, err
	}
	if text := q.Get("metadata"); text != "" {
		pairs, err := url.ParseQuery(text)
		if err != nil {
			return nil, bad("the filter metadata is malformed")
		}
		l.filter.Metadata = map[string]string{}
		for k, v := range pairs {
			l.filter.Metadata[k] = v[0]
		}
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, bad("the limit is not a number from 1")
		}
		l.limit = min(n, maxPage)
	}
	if text := q.Get("startedAfter"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, bad("startedAfter is not a time of RFC 3339")
		}
		l.after = at
	}
	if name := q.Get("template"); name != "" {
		if l.filter.Template = name; name == "code-interpreter-v1" {
			l.filter.Template = interpreterTemplate
		}
	}
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		l.asc = true
	default:
		return nil, bad("the order is neither asc nor desc")
	}
	if strings.HasPrefix(l.token, oldestFirst) != l.asc && l.token != "" {
		return nil, bad("the token is one of another list")
	}
	return l, nil
}

// parseStates takes states that are repeated, or separated by commas.
func (l *listQuery) parseStates(all []string) error {
	for _, s := range strings.Split(strings.Join(all, ","), ",") {
		switch s {
		case "":
		case stateRunning:
			l.running = true
		case statePaused:
			l.paused = true
		default:
			return bad("there is no state " + clip(s))
		}
	}
	if !l.running && !l.paused {
		l.running, l.paused = true, true
	}
	return nil
}

// listRunning is list of older clients: what runs, in one page.
func (d *Door) listRunning(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r.URL.Query())
	if err != nil {
		return err
	}
	l.paused, l.running = false, true
	all, _, err := d.page(r.Context(), l)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, all)
}

// list answers a page of sandboxes.
func (d *Door) list(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r.URL.Query())
	if err != nil {
		return err
	}
	all, next, err := d.page(r.Context(), l)
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set(nextHeader, next)
	}
	return answer(w, http.StatusOK, all)
}

// page returns a page of sandboxes and the token of the next one.
func (d *Door) page(ctx context.Context, l *listQuery) ([]sandboxInfo, string, error) {
	if l.asc {
		return d.oldest(ctx, l)
	}
	infos, token := []sandboxInfo{}, l.token
	for range maxPages {
		a, err := d.sandboxes.ListSandboxes(ctx, connect.NewRequest(&v1.ListSandboxesRequest{
			Filter: l.filter, Page: &v1.Page{Size: uint32(l.limit - len(infos)), Token: token}}))
		if err != nil {
			return nil, "", err
		}
		infos, token = append(infos, d.selected(l, a.Msg.Sandboxes)...), a.Msg.NextPageToken
		if token == "" || len(infos) >= l.limit {
			break
		}
	}
	return infos, token, nil
}

// selected returns those of the sandboxes that were made at the door and that a list asks for.
func (d *Door) selected(l *listQuery, all []*v1.Sandbox) (infos []sandboxInfo) {
	for _, s := range all {
		if s.Paused && !l.paused || !s.Paused && !l.running ||
			!l.after.IsZero() && s.GetCreated().AsTime().Before(l.after) {
			continue
		}
		if _, err := d.find(turnstone.SandboxID(s.SandboxId)); err != nil {
			continue
		}
		infos = append(infos, infoOf(s))
	}
	return infos
}

// oldest returns a page in the order of starts.
func (d *Door) oldest(ctx context.Context, l *listQuery) ([]sandboxInfo, string, error) {
	last, err := parsePlace(l.token)
	if err != nil {
		return nil, "", err
	}
	l.asc, l.token = false, ""
	infos, size := []sandboxInfo{}, l.limit
	l.limit = maxPage
	for range maxPages {
		some, next, err := d.page(ctx, l)
		if err != nil {
			return nil, "", err
		}
		infos = append(infos, some...)
		if l.token = next; next == "" {
			break
		}
	}
	slices.SortFunc(infos, func(a, b sandboxInfo) int { return placeOf(a).compare(placeOf(b)) })
	from := sort.Search(len(infos), func(n int) bool { return placeOf(infos[n]).compare(last) > 0 })
	page := infos[from:min(from+size, len(infos))]
	if from+size < len(infos) {
		return page, placeOf(page[len(page)-1]).token(), nil
	}
	return page, "", nil
}
