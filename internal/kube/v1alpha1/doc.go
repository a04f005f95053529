// Package v1alpha1 has the project's own objects of Kubernetes: Turn, Session and TurnTemplate. They
// refer to content by names and digests: no object has a receipt or a secret, and a Turn has a document
// only if its writer puts it there. The definitions in packaging/helm/turnstone/crds are generated from
// these types by scripts/crds.
//
// +kubebuilder:object:generate=true
// +groupName=turnstone.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the objects.
const Group = "turnstone.dev"

// Version returns the group with this version.
func Version() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: "v1alpha1"} }

// AddToScheme adds the kinds to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(Version(), &Turn{}, &TurnList{}, &Session{}, &SessionList{}, &TurnTemplate{},
		&TurnTemplateList{})
	metav1.AddToGroupVersion(s, Version())
	return nil
}
