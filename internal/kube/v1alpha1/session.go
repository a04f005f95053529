package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A Session is a session of the server with the object's name, or, with a parent, a branch with the
// object's name of the parent's session.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ts,categories=turnstone
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Session,type=string,JSONPath=`.status.session`
// +kubebuilder:printcolumn:name=Branch,type=string,JSONPath=`.status.branch`
// +kubebuilder:printcolumn:name=Template,type=string,JSONPath=`.spec.template`
// +kubebuilder:printcolumn:name=Turns,type=integer,JSONPath=`.status.turns`
// +kubebuilder:printcolumn:name=Head,type=integer,JSONPath=`.status.head.number`
// +kubebuilder:printcolumn:name=Policy,type=string,priority=1,JSONPath=`.spec.deletionPolicy`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 64",message="the name is longer than 64 characters, and sessions of the server have at most 64"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.matches('^turn-[0-9]+$')",message="the name reads as a turn's, such as turn-6: use another"
type Session struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Spec SessionSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status SessionStatus `json:"status,omitempty,omitzero"`
}

// SessionSpec says what turns of a session start from, and what becomes of it.
//
// +kubebuilder:validation:XValidation:rule="has(self.parent) == has(oldSelf.parent) && (!has(self.parent) || self.parent == oldSelf.parent)",message="parent cannot change: create another Session"
// +kubebuilder:validation:XValidation:rule="!has(self.template) || !has(self.image)",message="template and image exclude each other: template names a TurnTemplate, image a template of the server or an image"
type SessionSpec struct {
	// The name of a TurnTemplate, for Turns that name neither a template nor an image.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Template string `json:"template,omitempty"`
	// The same as a template of the server, or an image.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`
	Image string `json:"image,omitempty"`
	// The turn from which this session is forked.
	// +optional
	Parent *TurnRef `json:"parent,omitempty"`
	// What becomes of the turns when the object is deleted: Retain keeps them at the server, and a
	// Session of the same name finds them again. Delete removes them, or, of a fork, its branch.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// A DeletionPolicy says what becomes of a session whose object is deleted.
//
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// The policies.
const (
	Retain DeletionPolicy = "Retain"
	Delete DeletionPolicy = "Delete"
)

// SessionStatus is what is known of a session. It follows its turns within half a minute.
type SessionStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The session at the server, and its branch.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Session string `json:"session,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=100
	Branch string `json:"branch,omitempty"`
	// The number of the branch's turns.
	// +optional
	Turns *int64 `json:"turns,omitempty"`
	// The newest turn.
	// +optional
	Head *Head `json:"head,omitempty"`
}

// A Head is the newest turn of a branch.
type Head struct {
	// +kubebuilder:validation:MaxLength=64
	Turn   string `json:"turn"`
	Number int64  `json:"number"`
}

// SessionList is a list of Sessions.
//
// +kubebuilder:object:root=true
type SessionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Session `json:"items"`
}

// A TurnTemplate builds a template at the server, and names it for Turns and Sessions.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tt,categories=turnstone
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Image,type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name=Digest,type=string,priority=1,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name=Reason,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type TurnTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec TurnTemplateSpec `json:"spec"`
	// +optional
	Status TurnTemplateStatus `json:"status,omitempty,omitzero"`
}

// TurnTemplateSpec names a template. It cannot change: Turns that named it would mean another.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot change: create another TurnTemplate"
type TurnTemplateSpec struct {
	// A template of the server, such as base, or an image, such as python:3.12. The server has the
	// spec: see docs/templates.md.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`
	Image string `json:"image"`
	// The digest that the template must have. With any other it does not become ready.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest,omitempty"`
}

// TurnTemplateStatus is what is known of a template.
type TurnTemplateStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The digest of the template that was built.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest,omitempty"`
}

// TurnTemplateList is a list of TurnTemplates.
//
// +kubebuilder:object:root=true
type TurnTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TurnTemplate `json:"items"`
}
