// Package proofcmd has the commands about evidence: keys, verification, traces, comparisons, and the
// FS hash of a folder.
package proofcmd

// HashCmd is turn hash.
type HashCmd struct {
	Dir   string `arg:"" help:"Folder to hash; symlinks inside are not followed."`
	Owner string `help:"Assume this owner for all files, such as 0:0." placeholder:"UID:GID"`
	JSON  bool   `name:"json" help:"Print the hash and the counts as JSON."`
}

// Examples returns command lines for the help.
func (c *HashCmd) Examples() []string {
	return []string{
		"turn hash --owner 0:0 out",
	}
}
