// Package turnstonev1connect is the control API's services, generated from proto/turnstone/v1.
package turnstonev1connect
