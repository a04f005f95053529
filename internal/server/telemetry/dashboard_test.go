package telemetry

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/server/config"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md")

// TestDocs: docs/metrics.md has the table of metrics.
func TestDocs(t *testing.T) {
	const path, begin, end = "../../../docs/metrics.md", "<!-- metrics -->\n", "<!-- end -->"
	var b strings.Builder
	b.WriteString("\n| metric | kind | labels | roles | meaning |\n|---|---|---|---|---|\n")
	for _, m := range Metrics() {
		labels := ""
		for i, l := range m.Labels {
			labels += strings.Repeat(", ", min(i, 1)) + "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Kind, labels, m.role, m.Help)
	}
	b.WriteString("\n")
	text, err := os.ReadFile(path)
	check(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %s", path, begin)
	}
	want := before + begin + b.String() + end + after
	if *update {
		check(t, os.WriteFile(path, []byte(want), 0o644))
	} else if string(text) != want {
		t.Error("run: go test ./internal/server/telemetry -run TestDocs -update")
	}
}

var (
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
	braces   = regexp.MustCompile(`\{([^}]*)\}`)
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	ranges   = regexp.MustCompile(`\[[^\]]*\]`)
)

// words of PromQL that are no metrics, as far as the dashboard uses them.
var promql = []string{"sum", "rate", "increase", "histogram_quantile", "group_left", "label_values"}

// uses returns the metrics in an expression, and the labels that it selects or groups by. It knows
// as much of PromQL as the dashboard needs: an unknown function is taken for a metric, and reported.
func uses(expr string) (names, labels []string) {
	expr = quoted.ReplaceAllString(expr, `""`)
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, word.FindAllString(m[2], -1)...)
	}
	for _, m := range braces.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, word.FindAllString(m[1], -1)...)
	}
	for _, r := range []*regexp.Regexp{grouping, braces, ranges} {
		expr = r.ReplaceAllString(expr, " ")
	}
	for _, w := range word.FindAllString(expr, -1) {
		if !slices.Contains(promql, w) {
			names = append(names, w)
		}
	}
	return names, labels
}

// TestDashboard: each metric in the dashboard is on the page, with the labels that are used, and
// each metric of the list is in the dashboard.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../../packaging/grafana/turnstone.json")
	check(t, err)
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	check(t, json.Unmarshal(text, &dashboard))
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	fill(t, tel)
	found := families(t, page(t, tel))
	shown, ids := map[string]bool{build: true}, map[int]bool{}
	see := func(title, expr, legend string) {
		names, labels := uses(expr)
		if len(names) == 0 {
			t.Errorf("%s: %s has no metric", title, expr)
		}
		for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(legend, -1) {
			labels = append(labels, m[1])
		}
		for _, name := range names {
			base := name
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				if b := strings.TrimSuffix(name, end); found[b] == Histogram {
					base = b
				}
			}
			if _, ok := found[base]; !ok || base == name && found[name] == Histogram {
				t.Errorf("%s: %s is not on the page", title, name)
			}
			shown[base] = true
			for _, l := range labels {
				if !slices.Contains(labelsOf(base), l) {
					t.Errorf("%s: %s has no label %s", title, name, l)
				}
			}
		}
	}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("panel %d is there twice", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, x := range p.Targets {
			see(p.Title, x.Expr, x.LegendFormat)
		}
	}
	for _, m := range Metrics() {
		if !shown[m.Name] {
			t.Errorf("%s is not shown", m.Name)
		}
	}
	if len(dashboard.Templating.List) != 3 || strings.Contains(string(text), "marker") {
		t.Error("the variables are not those of a data source, a job and an instance")
	}
}

func labelsOf(name string) []string {
	all := []string{"job", "instance", "le"}
	for _, m := range Metrics() {
		if m.Name == name {
			all = append(all, m.Labels...)
		}
	}
	return all
}

// TestUses: the test of the dashboard finds what it looks for.
func TestUses(t *testing.T) {
	names, labels := uses(`histogram_quantile(0.99, sum by (le, role) (rate(a_bucket{job=~"$job", x="b_total"}[5m]))) / ignoring (phase) group_left sum (c)`)
	if !slices.Equal(names, []string{"a_bucket", "c"}) ||
		!slices.Equal(labels, []string{"le", "role", "phase", "job", "x"}) {
		t.Errorf("%q, %q", names, labels)
	}
}
