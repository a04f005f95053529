package agents

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
)

// Reasons that agent-sandbox's types do not name.
const (
	// ReasonInvalid is that of an object that no sandbox can be. agent-sandbox's clients do not wait
	// after it.
	ReasonInvalid = "InvalidConfiguration"
	// ReasonCreating is that of the event of an object whose sandbox takes long.
	ReasonCreating = "SandboxCreating"
	// ReasonError is that of a call that failed and is repeated.
	ReasonError = "ReconcilerError"
)

// set sets a condition.
func set(all *[]metav1.Condition, generation int64, kind sandboxv1.ConditionType, status bool, reason, message string) {
	s := metav1.ConditionFalse
	if status {
		s = metav1.ConditionTrue
	}
	meta.SetStatusCondition(all, metav1.Condition{Type: string(kind), Status: s, Reason: reason,
		Message: clip(message), ObservedGeneration: generation})
}

// remove removes a condition.
func remove(all *[]metav1.Condition, kind sandboxv1.ConditionType) {
	*all = slices.DeleteFunc(*all, func(c metav1.Condition) bool { return c.Type == string(kind) })
}

// ready returns the condition Ready, or a zero one.
func ready(all []metav1.Condition) metav1.Condition {
	if c := meta.FindStatusCondition(all, string(sandboxv1.SandboxConditionReady)); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// same reports whether two states of an object have nothing to write.
func same(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
