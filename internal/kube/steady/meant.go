package steady

import (
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Meant passes all changes but those of a status alone, which say what an operator wrote. Otherwise
// each write would be followed by a look at once, and an object whose status is another at each look
// would be looked at without a pause: a message may have the words of a registry or of a sandbox.
func Meant() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetResourceVersion() == e.ObjectNew.GetResourceVersion() || meant(e.ObjectOld, e.ObjectNew)
	}}
}

// meant reports whether an object differs by more than its status.
func meant(a, b client.Object) bool {
	return a.GetUID() != b.GetUID() || a.GetGeneration() != b.GetGeneration() ||
		!a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) ||
		!maps.Equal(a.GetLabels(), b.GetLabels()) || !maps.Equal(a.GetAnnotations(), b.GetAnnotations()) ||
		!slices.Equal(a.GetFinalizers(), b.GetFinalizers()) ||
		!reflect.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}
