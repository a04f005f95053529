package statedir

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"

	"turnstone.dev/turnstone"
)

// makePrivate creates a directory that only its user, the administrators and the system can access,
// if there is none. What is created in the directory inherits this.
func makePrivate(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	user, err := currentUser()
	if err != nil {
		return err
	}
	// P: inherits nothing itself; OICI: files and folders inherit; FA: all access
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;" + user.String() +
		")(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	if err != nil {
		return err
	}
	acl, _, err := sd.DACL()
	if err != nil {
		return err
	}
	return windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION,
		nil, nil, acl, nil)
}

// checkPrivate rejects a state directory that another user could write. Windows checks the folders
// on the path by itself: a folder's entries are protected by their own lists.
func checkPrivate(dir string) error {
	if err := CheckWriters(dir); err != nil {
		return turnstone.NewError("home.open", turnstone.KindInvalid, "state directory "+dir,
			err).WithHint("set TURN_HOME to a directory of your own that others cannot write")
	}
	return nil
}

// CheckWriters returns an error if another user can write the file or directory at path.
func CheckWriters(path string) error {
	return checkACL(path, windows.FILE_WRITE_DATA|windows.FILE_APPEND_DATA|windows.DELETE|
		windows.WRITE_DAC|windows.WRITE_OWNER|windows.GENERIC_WRITE|windows.GENERIC_ALL)
}

// CheckReaders returns an error if another user can read the file at path.
func CheckReaders(path string) error {
	return checkACL(path, windows.FILE_READ_DATA|windows.WRITE_DAC|windows.WRITE_OWNER|
		windows.GENERIC_READ|windows.GENERIC_ALL)
}

// checkACL returns an error if the file at path belongs to another user, or if another user has one
// of the rights. Administrators and the system count as root does: they have every right.
func checkACL(path string, rights windows.ACCESS_MASK) error {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	user, err := currentUser()
	if err != nil {
		return err
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return err
	}
	if !trusted(owner, user) {
		return fmt.Errorf("it belongs to %s", nameOf(owner))
	}
	acl, _, err := sd.DACL()
	if err != nil {
		return err
	}
	if acl == nil {
		return errors.New("every user has every right (no access list)")
	}
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			return err
		}
		if ace.Header.AceType == windows.ACCESS_DENIED_ACE_TYPE || ace.Mask&rights == 0 {
			continue
		}
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE {
			return errors.New("its access list has an entry of an unknown type")
		}
		if sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart)); !trusted(sid, user) {
			return fmt.Errorf("%s has access", nameOf(sid))
		}
	}
	return nil
}

// trusted reports whether sid is the user, the system, the administrators, or the stand-in for
// whoever owns the file.
func trusted(sid, user *windows.SID) bool {
	return sid.Equals(user) || sid.IsWellKnown(windows.WinLocalSystemSid) ||
		sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		sid.IsWellKnown(windows.WinCreatorOwnerSid) ||
		sid.IsWellKnown(windows.WinCreatorOwnerRightsSid)
}

func currentUser() (*windows.SID, error) {
	u, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return u.User.Sid, nil
}

func nameOf(sid *windows.SID) string {
	account, domain, _, err := sid.LookupAccount("")
	if err != nil {
		return "user " + sid.String()
	}
	return "user " + domain + `\` + account
}
