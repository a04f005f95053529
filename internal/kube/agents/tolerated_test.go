package agents

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestTolerated: a pod's tolerations say how long its sandbox stays on a node that is lost, as they say it of
// the pod.
func TestTolerated(t *testing.T) {
	const usual = 300 * time.Second
	after := func(seconds int64, of corev1.Toleration) corev1.Toleration {
		of.TolerationSeconds = &seconds
		return of
	}
	exists := corev1.Toleration{Key: unreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	other := exists
	other.Key = "node.kubernetes.io/not-ready"
	schedule := exists
	schedule.Effect = corev1.TaintEffectNoSchedule
	for what, tt := range map[string]struct {
		of    []corev1.Toleration
		want  time.Duration
		never bool
	}{
		"none":            {nil, usual, false},
		"of other taints": {[]corev1.Toleration{other, schedule}, usual, false},
		"a minute":        {[]corev1.Toleration{other, after(60, exists)}, time.Minute, false},
		"not at all":      {[]corev1.Toleration{after(-5, exists)}, 0, false},
		"for ever":        {[]corev1.Toleration{exists}, 0, true},
		"of all":          {[]corev1.Toleration{all}, 0, true},
		"the shortest":    {[]corev1.Toleration{exists, after(90, all), after(60, exists)}, time.Minute, false},
		"huge":            {[]corev1.Toleration{after(1<<62, exists)}, (1 << 31) * time.Second, false},
	} {
		if d, never := tolerated(&corev1.PodSpec{Tolerations: tt.of}, usual); d != tt.want || never != tt.never {
			t.Errorf("%s: %s, %v", what, d, never)
		}
	}
}

// TestShortest: the more sandboxes of an object were lost, the longer the next one has to live until it is
// replaced at once.
func TestShortest(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 0, 1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second,
		6: 5 * time.Minute, 1 << 30: 5 * time.Minute} {
		if got := shortest(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
