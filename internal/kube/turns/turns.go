// Package turns is being written.
package turns
