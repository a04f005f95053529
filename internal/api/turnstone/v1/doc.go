// Package turnstonev1 is the control API's messages, generated from proto/turnstone/v1.
package turnstonev1
