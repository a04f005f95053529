package ui_test

import (
	"slices"
	"testing"
)

// BenchmarkPage opens the page in Chromium, again and again in one window: milliseconds from the
// navigation to the first paint, and to the frame after rows and receipt are in the page. make bench
// ONLY=ui runs it.
func BenchmarkPage(b *testing.B) {
	for _, bb := range []struct{ name, session string }{{"13", "research"}, {"1000", "large"}} {
		b.Run(bb.name, func(b *testing.B) {
			p := newPlace()
			p.calm = true
			at := serve(b, p)
			w := open(b, 1280, 800, "light")
			w.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `(() => {
				const look = () => requestAnimationFrame(() => {
					if (document.querySelector(".row") && document.querySelector(".markdown table"))
						requestAnimationFrame(() => { globalThis.shown = performance.now(); });
					else look();
				});
				look();
			})()`}, nil)
			var paint, shown []float64
			visit := func() {
				w.visit(at+"#session="+bb.session, `globalThis.shown &&
					performance.getEntriesByName("first-contentful-paint")[0]`)
				paint = append(paint, w.eval(`performance.getEntriesByName("first-contentful-paint")[0].startTime`).(float64))
				shown = append(shown, w.eval("shown").(float64))
			}
			visit()
			cold := shown[0]
			paint, shown = nil, nil
			for b.Loop() {
				visit()
			}
			slices.Sort(paint)
			slices.Sort(shown)
			b.ReportMetric(cold, "cold-ms")
			for name, all := range map[string][]float64{"paint": paint, "shown": shown} {
				b.ReportMetric(all[len(all)/2], name+"-p50-ms")
				b.ReportMetric(all[len(all)*99/100], name+"-p99-ms")
			}
		})
	}
}
