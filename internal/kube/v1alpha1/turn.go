package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A Turn runs a document once. Its UID names the run: however often an operator is restarted, the
// document runs once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tn,categories=turnstone
// +kubebuilder:printcolumn:name=Phase,type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name=Session,type=string,JSONPath=`.spec.session`
// +kubebuilder:printcolumn:name=Template,type=string,JSONPath=`.status.image`
// +kubebuilder:printcolumn:name=Steps,type=string,JSONPath=`.status.steps.summary`
// +kubebuilder:printcolumn:name=Exit,type=integer,JSONPath=`.status.exitCode`
// +kubebuilder:printcolumn:name=Duration,type=string,JSONPath=`.status.duration`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name=Turn,type=string,priority=1,JSONPath=`.status.turn`
// +kubebuilder:printcolumn:name=Reason,type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Completed")].reason`
type Turn struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec TurnSpec `json:"spec"`
	// +optional
	Status TurnStatus `json:"status,omitempty,omitzero"`
}

// TurnSpec says what runs, on what, and within which bounds. Only ttlSecondsAfterFinished can change.
//
// +kubebuilder:validation:XValidation:rule="self.document == oldSelf.document",message="document cannot change: a Turn runs once, so create another Turn"
// +kubebuilder:validation:XValidation:rule="has(self.session) == has(oldSelf.session) && (!has(self.session) || self.session == oldSelf.session)",message="session cannot change: create another Turn"
// +kubebuilder:validation:XValidation:rule="has(self.template) == has(oldSelf.template) && (!has(self.template) || self.template == oldSelf.template)",message="template cannot change: create another Turn"
// +kubebuilder:validation:XValidation:rule="has(self.image) == has(oldSelf.image) && (!has(self.image) || self.image == oldSelf.image)",message="image cannot change: create another Turn"
// +kubebuilder:validation:XValidation:rule="has(self.timeout) == has(oldSelf.timeout) && (!has(self.timeout) || self.timeout == oldSelf.timeout)",message="timeout cannot change: create another Turn"
// +kubebuilder:validation:XValidation:rule="has(self.machine) == has(oldSelf.machine) && (!has(self.machine) || self.machine == oldSelf.machine)",message="machine cannot change: create another Turn"
// +kubebuilder:validation:XValidation:rule="!has(self.template) || !has(self.image)",message="template and image exclude each other: template names a TurnTemplate, image a template of the server or an image"
type TurnSpec struct {
	// The document: a reference, which the operator reads with its own key, or a text that is in the cluster.
	// +required
	Document DocumentSource `json:"document"`
	// The name of a Session of this namespace, which the turn continues. Turns of a Session run one
	// after another, in the order of their creation. Without it the turn begins a session that has no
	// name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Session string `json:"session,omitempty"`
	// The name of a TurnTemplate of this namespace.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Template string `json:"template,omitempty"`
	// A template of the server, such as base, or an image, such as python:3.12.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`
	Image string `json:"image,omitempty"`
	// The time limit of the turn, such as 90s or 1h30m: from 1s to 168h.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(h|m|s))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="timeout is not between 1s and 168h"
	Timeout string `json:"timeout,omitempty"`
	// What the sandbox gets if the document asks for nothing, and the most that it can ask for.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// The object is deleted this many seconds after its turn has ended. The session keeps the turn.
	// Without it the object stays.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// A Machine is the size of a sandbox.
//
// +kubebuilder:validation:MinProperties=1
type Machine struct {
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	CPUs int32 `json:"cpus,omitempty"`
	// Such as 512Mi or 2Gi: from 256Mi to 1Ti.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=9
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,6}(Mi|Gi|Ti)$`
	// +kubebuilder:validation:XValidation:rule="quantity(self).compareTo(quantity('256Mi')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0",message="memory is not between 256Mi and 1Ti"
	Memory string `json:"memory,omitempty"`
	// What the turn may write, such as 4Gi: from 16Mi to 16Ti.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=9
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,6}(Mi|Gi|Ti)$`
	// +kubebuilder:validation:XValidation:rule="quantity(self).compareTo(quantity('16Mi')) >= 0 && quantity(self).compareTo(quantity('16Ti')) <= 0",message="disk is not between 16Mi and 16Ti"
	Disk string `json:"disk,omitempty"`
}

// A TurnRef names a turn of a session of this namespace's tenant at the server. A Session object has
// the same name there, unless it is a fork: status.session and status.branch say which.
type TurnRef struct {
	// The session's name or ID at the server.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Session string `json:"session"`
	// A number, branch, tag or ID of a turn; by default the newest turn of main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/~-]*$`
	Turn string `json:"turn,omitempty"`
}

// A DocumentSource names a document: a file of the state that a turn left, or, without a path, the
// document of the turn itself, which runs again. Or it is the document, or names a key of a ConfigMap that
// has it: then it is in etcd, and whoever may read the object reads it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.session), has(self.inline), has(self.configMap)].filter(x, x).size() == 1",message="document has one of session, inline and configMap"
// +kubebuilder:validation:XValidation:rule="has(self.session) || !has(self.turn) && !has(self.path)",message="document.turn and document.path are those of a session"
type DocumentSource struct {
	// The session's name or ID at the server.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Session string `json:"session,omitempty"`
	// A number, branch, tag or ID of a turn; by default the newest turn of main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/~-]*$`
	Turn string `json:"turn,omitempty"`
	// The absolute path of a file of the state that the turn left.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/[^\x00-\x1f\x7f]+$`
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(part, part == '..' || part == '.')",message="path has a part . or ..: write it without"
	Path string `json:"path,omitempty"`
	// The document itself. It must not have secrets: the object is in etcd.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Inline string `json:"inline,omitempty"`
	// A key of a ConfigMap of this namespace. The turn has the document that was there when it started.
	// +optional
	ConfigMap *ConfigMapKey `json:"configMap,omitempty"`
	// The digest that the document must have. Any other document is refused.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest,omitempty"`
}

// Ref returns the turn that a source names, if it names one.
func (d DocumentSource) Ref() TurnRef { return TurnRef{Session: d.Session, Turn: d.Turn} }

// A ConfigMapKey names a text of a ConfigMap.
type ConfigMapKey struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Name string `json:"name"`
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]+$`
	Key string `json:"key"`
}

// A Phase is the state of a Turn.
//
// +kubebuilder:validation:Enum=Waiting;Running;Passed;Failed;Refused
type Phase string

// The phases. A Turn without one has not been seen yet, or waits for the Turn before it.
const (
	PhaseWaiting Phase = "Waiting" // for an object that is not there yet
	PhaseRunning Phase = "Running"
	PhasePassed  Phase = "Passed"  // every step passed, was skipped by its author, or may fail
	PhaseFailed  Phase = "Failed"  // the condition Completed says why
	PhaseRefused Phase = "Refused" // nothing ran: the condition Accepted says why
)

// Types of conditions.
const (
	Accepted  = "Accepted"
	Running   = "Running"
	Completed = "Completed"
	Ready     = "Ready"
)

// Reasons of conditions.
const (
	ReasonAccepted         = "Accepted"
	ReasonSessionNotFound  = "SessionNotFound"  // the Session object
	ReasonSessionNotReady  = "SessionNotReady"  // its condition Ready says why
	ReasonTemplateNotFound = "TemplateNotFound" // the TurnTemplate object
	ReasonTemplateNotReady = "TemplateNotReady"
	ReasonDocumentNotFound = "DocumentNotFound"
	ReasonDocumentInvalid  = "DocumentInvalid"
	ReasonDigestMismatch   = "DigestMismatch"
	ReasonDenied           = "Denied"
	ReasonRefused          = "Refused" // by the server
	ReasonServerError      = "ServerError"

	ReasonStarted  = "Started"
	ReasonEnded    = "Ended"
	ReasonPassed   = "Passed"
	ReasonStep     = "StepFailed"
	ReasonTimedOut = "TimedOut"
	ReasonError    = "Error" // it could not be completed
	ReasonCanceled = "Canceled"
	ReasonLost     = "Lost" // it may have run, and its end is not known

	ReasonReady    = "Ready"
	ReasonPending  = "Pending"
	ReasonBuilding = "Building"
	ReasonFailed   = "Failed"
)

// TurnStatus is what is known of a turn. The operator writes it twice: when the turn starts, and when
// it has ended.
type TurnStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Accepted, Running and Completed.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The ticket of the server with which the turn was started. It is of use to the operator alone.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Ticket string `json:"ticket,omitempty"`
	// The document's digest.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	Document string `json:"document,omitempty"`
	// The ID of the turn in its session.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Turn string `json:"turn,omitempty"`
	// The turn's session at the server, its number and the branch whose head it is.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Session string `json:"session,omitempty"`
	// +optional
	Number int64 `json:"number,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=100
	Branch string `json:"branch,omitempty"`
	// The template, or the image, and the digest of the template's files.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Image string `json:"image,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=71
	Template string `json:"template,omitempty"`
	// Digests: the receipt's, that of the files that the turn left, and that of its record.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	Receipt string `json:"receipt,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=71
	State string `json:"state,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=71
	Record string `json:"record,omitempty"`
	// +optional
	Steps *Steps `json:"steps,omitempty"`
	// The exit status of turn run for this turn: 0 passed, 1 a step failed, 3 not completed.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Duration string `json:"duration,omitempty"`
}

// Steps counts the steps of a turn.
type Steps struct {
	Total  int32 `json:"total"`
	Passed int32 `json:"passed"`
	Failed int32 `json:"failed"`
	// Such as 2/3: passed of all.
	// +kubebuilder:validation:MaxLength=32
	Summary string `json:"summary"`
}

// TurnList is a list of Turns.
//
// +kubebuilder:object:root=true
type TurnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Turn `json:"items"`
}
