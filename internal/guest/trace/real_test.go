package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// real are shell scripts of Debian's packages with harmless arguments. Scripts that this machine
// lacks are omitted.
var real = [][]string{
	{"/usr/bin/ldd", "--version"}, {"/usr/bin/ldd", "/nonexistent"},
	{"/usr/bin/catchsegv", "--help"}, {"/usr/bin/catchsegv", "--version"},
	{"/usr/bin/tzselect", "--help"}, {"/usr/bin/tzselect", "--version"},
	{"/usr/bin/zgrep", "--help"}, {"/usr/bin/zgrep", "step", "step.sh"},
	{"/usr/bin/zcat", "--help"}, {"/usr/bin/zdiff", "--help"},
	{"/usr/bin/zcmp", "--version"}, {"/usr/bin/zmore", "--help"}, {"/usr/bin/zless", "--version"},
	{"/usr/bin/znew", "--help"},
	{"/usr/bin/zforce", "--help"}, {"/usr/bin/gzexe", "--help"}, {"/usr/bin/gunzip", "--help"},
	{"/usr/bin/gunzip", "nonexistent.gz"},
	{"/usr/bin/uncompress", "--version"}, {"/usr/bin/zfgrep", "--version"},
	{"/usr/bin/zegrep", "--help"},
	{"/usr/bin/bzdiff", "step.sh"}, {"/usr/bin/bzexe"}, {"/usr/bin/bzgrep"},
	{"/usr/bin/bzmore", "--help"},
	{"/usr/bin/xzdiff", "--help"}, {"/usr/bin/xzgrep", "--help"}, {"/usr/bin/xzgrep", "--version"},
	{"/usr/bin/xzless", "--help"}, {"/usr/bin/xzmore", "--help"},
	{"/usr/bin/egrep", "echo", "step.sh"}, {"/usr/bin/fgrep", "echo", "step.sh"},
	{"/usr/bin/egrep", "--version"},
	{"/usr/bin/which.debianutils", "ls", "cat", "nonexistent"},
	{"/usr/bin/which.debianutils", "-a", "sh"},
	{"/usr/bin/savelog", "--help"}, {"/usr/bin/lesspipe", "step.sh"}, {"/usr/bin/lesspipe"},
	{"/usr/bin/lessfile", "step.sh"},
	{"/usr/bin/gettext.sh", "--help"}, {"/usr/bin/gettext.sh", "--version"},
	{"/usr/bin/autopoint", "--help"}, {"/usr/bin/gettextize", "--help"},
	{"/usr/bin/xdg-open", "--help"}, {"/usr/bin/xdg-mime", "--version"},
	{"/usr/bin/xdg-settings", "--help"},
	{"/usr/bin/xdg-email", "--help"}, {"/usr/bin/xdg-user-dirs-update", "--help"},
	{"/usr/bin/sensible-editor", "--version"},
	{"/usr/bin/c89-gcc", "--version"}, {"/usr/bin/c99-gcc", "--version"}, {"/usr/bin/c89"},
	{"/usr/bin/c99", "-E", "/dev/null"},
	{"/usr/bin/dpkg-maintscript-helper", "--help"},
	{"/usr/bin/dpkg-maintscript-helper", "supports", "rm_conffile"},
	{"/usr/bin/dpkg-maintscript-helper"},
	{"/usr/bin/libtoolize", "--help"}, {"/usr/bin/libtoolize", "--version"},
	{"/usr/bin/pkg-config", "--version"},
	{"/usr/bin/ncurses6-config", "--help"}, {"/usr/bin/curl-config", "--help"},
	{"/usr/bin/xml2-config", "--help"}, {"/usr/bin/xslt-config", "--version"},
	{"/usr/bin/mmdebstrap-autopkgtest-build-qemu", "--help"}, {"/usr/sbin/debootstrap", "--help"},
	{"/usr/sbin/debootstrap", "--version"},
	{"/usr/lib/git-core/git-sh-setup"}, {"/usr/lib/git-core/git-mergetool", "--help"},
	{"/usr/lib/git-core/git-submodule", "--help"}, {"/usr/lib/git-core/git-request-pull", "-h"},
	{"/usr/lib/git-core/git-web--browse", "-h"}, {"/usr/lib/git-core/git-merge-octopus"},
	{"/usr/lib/git-core/git-quiltimport", "-h"},
	{"/usr/sbin/update-rc.d", "--help"}, {"/usr/sbin/invoke-rc.d", "--help"},
	{"/usr/sbin/service", "--version"}, {"/usr/sbin/service", "--help"},
	{"/usr/sbin/mkinitramfs", "-h"}, {"/usr/sbin/update-initramfs", "-h"},
	{"/usr/bin/lsinitramfs", "-h"}, {"/usr/bin/unmkinitramfs", "-h"},
	{"/usr/sbin/installkernel"}, {"/usr/sbin/add-shell"}, {"/usr/sbin/remove-shell"},
	{"/usr/share/debconf/confmodule"}, {"/usr/bin/ssh-copy-id", "-h"}, {"/usr/bin/ssh-argv0"},
	{"/usr/bin/rgrep", "echo", "step.sh"}, {"/usr/bin/x86_64-linux-gnu-pkg-config", "--version"},
}

func TestRealScripts(t *testing.T) {
	ran := 0
	for _, argv := range real {
		b, err := os.ReadFile(argv[0])
		if err != nil {
			continue
		}
		line, _, _ := strings.Cut(string(b), "\n")
		if !strings.HasPrefix(line, "#!") ||
			!strings.HasSuffix(strings.Fields(line + " x")[0], "sh") &&
				!strings.HasSuffix(line, "bash") {
			continue
		}
		ran++
		t.Run(filepath.Base(argv[0])+" "+strings.Join(argv[1:], " "), func(t *testing.T) {
			t.Parallel()
			compare(t, "", string(b), baseEnv, argv[1:]...)
		})
	}
	if ran < 10 {
		t.Skipf("only %d of the scripts are on this machine", ran)
	}
	t.Logf("%d scripts", ran)
}
