// Package controller is the part of a server that decides who may do what, where it is done, and
// what became of it. It serves callers (SandboxService, TurnService, SessionService,
// TemplateService, ServerService) and other roles (ControllerService), and calls nodes.
//
// A call is authorised twice: by its method's scope before its body is decoded, then for the object
// that it names. An object of another tenant answers as one that does not exist.
//
// The truth about an object is at its node. The controller follows the reports of each node, and a
// record in records.Store follows them. A record is made before its node is asked, with the ID of
// the new object, so that a crash of either leaves one of two: a record that the next list of the
// node corrects, or an object that the same ID finds again.
//
// The controller sees no content: it imports no channel, no wire and no store.
package controller
