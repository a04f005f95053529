package template

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/template/registry"
)

// layerBuilderVersion is part of the digests of layered templates. It changes when the same spec
// must result in another layer.
const layerBuilderVersion = 1

// buildDir is the directory of a build's temporary files. It is in no layer.
const buildDir = "/run/turn-build"

// buildEnv is the environment of a build's steps, in addition to their base's.
func buildEnv(reg *registry.Server, addr net.Addr) []string {
	env := []string{
		"HOME=/root", "LC_ALL=C.UTF-8", "TMPDIR=/tmp",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", debian.Epoch),
		"DEBIAN_FRONTEND=noninteractive", "APT_CONFIG=" + buildDir + "/apt.conf",
		"APT_LISTCHANGES_FRONTEND=none",
		"PIP_NO_CACHE_DIR=1", "PIP_NO_COMPILE=1", "PIP_NO_INPUT=1", "PIP_PROGRESS_BAR=off",
		"PIP_DEFAULT_TIMEOUT=900", "PIP_RETRIES=0",
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_BREAK_SYSTEM_PACKAGES=1",
		"PIP_ROOT_USER_ACTION=ignore",
		"PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0",
		"npm_config_cache=/tmp/npm", "npm_config_update_notifier=false", "npm_config_fund=false",
		"npm_config_audit=false",
		"npm_config_fetch_timeout=900000", "npm_config_fetch_retries=0",
		"npm_config_replace_registry_host=never", "npm_config_progress=false",
	}
	if reg == nil {
		return append(env, "PIP_NO_INDEX=1", "npm_config_offline=true")
	}
	host := guestHost(addr)
	return append(env, "PIP_INDEX_URL="+reg.PipIndex(host), "PIP_TRUSTED_HOST="+network.Gateway,
		"npm_config_registry="+reg.NpmRegistry(host),
		"no_proxy="+network.Gateway, "NO_PROXY="+network.Gateway)
}

// guestHost returns the address of a server on this host's loopback from the point of view of
// sandboxes.
func guestHost(addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String()) // a listener's address is well-formed
	return net.JoinHostPort(network.Gateway, port)
}

// aptConf configures apt during a build.
func aptConf(reg *registry.Server, addr net.Addr) []byte {
	var b bytes.Buffer
	if reg != nil {
		fmt.Fprintf(&b, "Acquire::http::Proxy %q;\n", reg.Proxy(guestHost(addr)))
	}
	b.WriteString(`Acquire::http::Timeout "900";
Acquire::Retries "1";
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Color "0";
Dpkg::Use-Pty "0";
Dpkg::Options { "--path-exclude=/usr/share/man/*"; "--path-exclude=/usr/share/info/*"; "--path-exclude=/usr/share/locale/*";
  "--path-exclude=/usr/share/doc/*"; "--path-include=/usr/share/doc/*/copyright"; "--force-confdef"; "--force-confold"; };
`)
	return b.Bytes()
}

// quote quotes words for bash.
func quote(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(" '" + strings.ReplaceAll(w, "'", `'\''`) + "'")
	}
	return b.String()
}

// layerSteps returns the steps that build spec's layer.
func layerSteps(spec *Spec, reg *registry.Server, apt func(map[string]string)) []LayerStep {
	var steps []LayerStep
	failed := func(what string) func(int, []byte) error {
		return func(exit int, tail []byte) error { return stepError(spec, what, exit, tail, reg) }
	}
	add := func(what, script string) {
		steps = append(steps, LayerStep{Name: what, Script: script, Failed: failed(what)})
	}
	if !strings.HasPrefix(spec.Base, debianBase) && len(spec.Packages) > 0 {
		words := spec.Packages
		if spec.Lock != nil {
			words = debian.Pinned(words, spec.Lock.Apt)
		}
		add("installing packages of Debian", `command -v apt-get >/dev/null || { echo "the base has no apt-get"; exit 127; }
apt-get -q update
apt-get -q -y install`+quote(words))
	}
	if len(spec.Pip) > 0 {
		add("installing packages of pip", `python3 -m pip --version >/dev/null || { echo "the base has no pip: begin with base = \"python\", or add python3-pip to packages"; exit 127; }
python3 -m pip install --no-compile --no-warn-script-location`+quote(spec.Pip)+`
python3 -m compileall -q -j 1 --invalidation-mode checked-hash $(python3 -c 'import sysconfig; p = sysconfig.get_paths(); print(*sorted({p["purelib"], p["platlib"]}))') >/dev/null 2>&1 || true`)
	}
	if len(spec.Npm) > 0 {
		add("installing packages of npm", `command -v npm >/dev/null || { echo "the base has no npm: begin with base = \"nodejs\""; exit 127; }
npm install --global --no-audit --no-fund`+quote(spec.Npm))
	}
	if len(spec.Files) > 0 {
		steps = append(steps, LayerStep{Name: "putting files in"})
	}
	for i, c := range spec.Commands {
		what := "running command"
		if len(spec.Commands) > 1 {
			what = fmt.Sprintf("running command %d of %d", i+1, len(spec.Commands))
		}
		add(what, c)
	}
	if step := userStep(spec.User); step != nil {
		steps = append(steps, *step)
	}
	add("cleaning up", "set --"+quote([]string{cmp.Or(spec.Workdir, DefaultWorkdir), spec.User})+"\n"+cleanup)
	steps = append(steps, LayerStep{Name: "listing packages",
		Script: `dpkg-query -W -f='${Package} ${Version} ${db:Status-Abbrev}\n' 2>/dev/null || ` +
			`true`,
		Done:   func(out []byte) error { apt(debian.InstalledList(out)); return nil },
		Failed: failed("listing packages")})
	return steps
}

// cleanup removes the build's temporary files, and files that differ between builds. The folders stay, because programs
// need them. The directory of steps, which is the first argument, belongs to their user, the second, if it is empty.
const cleanup = `for d in /var/log /var/cache/apt /var/lib/apt/lists /var/tmp; do
  if [ -d "$d" ]; then find "$d" -xdev -mindepth 1 ! -type d -delete; fi
done
rm -rf /root/.cache /root/.npm /root/.node-gyp /tmp/* /tmp/.[!.]* 2>/dev/null || true
rm -f /var/cache/ldconfig/aux-cache /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid- /etc/.pwd.lock \
  /var/lib/dpkg/lock /var/lib/dpkg/lock-frontend /var/lib/dpkg/triggers/Lock /var/lib/dpkg/status-old /var/lib/dpkg/diversions-old /var/lib/dpkg/statoverride-old \
  /var/cache/debconf/config.dat-old /var/cache/debconf/templates.dat-old /root/.bash_history /root/.wget-hsts
mkdir -p -- "$1"
case $2 in '' | *:*) user=$2 ;; *) user=$2:$(id -g -- "$2" 2>/dev/null || echo "$2") ;; esac
if [ -n "$user" ] && [ "$(stat -c %F:%u:%g:%a -- "$1")" = directory:0:0:755 ] && [ -z "$(ls -A -- "$1")" ]; then chown -h -- "$user" "$1"; fi
`

// skipped reports paths that stay out of a layer: those that the guest's kernel or agent fills, and
// those of a single build.
func skipped(path string) bool {
	first, _, deeper := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if deeper {
		for _, e := range emptied() {
			if first == e {
				return true
			}
		}
	}
	return path == "/var/lib/dbus/machine-id" ||
		strings.HasSuffix(path, "/node_modules/.package-lock.json")
}

// settled normalizes times: no file of a template is later than the epoch.
func settled(_ string, a *tree.Attr) {
	if a.MTime.Sec >= debian.Epoch {
		a.MTime = tree.Time{Sec: debian.Epoch}
	}
}

// A symptom is a phrase in a package manager's output, and its meaning.
type symptom struct {
	phrase *regexp.Regexp
	kind   turnstone.Kind
	hint   string
}

func symptoms() []symptom {
	return []symptom{
		{regexp.MustCompile(
			`No space left on device|ENOSPC[^\n]*|You don't have enough free space[^\n]*`),
			turnstone.KindExhausted,
			"give the build a larger disk: [machine] disk = \"16GiB\" in the spec"},
		{regexp.MustCompile(`E: Version '[^']*' for '[^']*' was not found`),
			turnstone.KindUnavailable,
			"name a snapshot of Debian's archive with TURN_DEBIAN_MIRROR (snapshot.debian.org), " +
				"or update the lock with --lock: the archive has changed"},
		{regexp.MustCompile(
			`E: Unable to locate package \S+|E: Package '?\S+'? has no installation candidate`),
			turnstone.KindInvalid,
			"check the name at https://packages.debian.org, and that it is in section main"},
		{regexp.MustCompile(`No matching distribution found for [^\n]*`), turnstone.KindInvalid,
			"check the name and the version at https://pypi.org; a package may also not be made " +
				"for this Python"},
		{regexp.MustCompile(
			`ResolutionImpossible[^\n]*|Cannot install [^\n]* because these package versions ` +
				`have conflicting dependencies`), turnstone.KindInvalid,
			"remove one of the packages from the spec: they conflict"},
		{regexp.MustCompile(
			`npm (?:ERR!|error) 404 +(?:'[^']*' is not in|Not Found)[^\n]*|npm (?:ERR!|error) ` +
				`notarget No matching version found for ` +
				`[^\n]*`), turnstone.KindInvalid, "check the name and the version at " +
			"https://www.npmjs.com"},
		{regexp.MustCompile(
			`Hash Sum mismatch|THESE PACKAGES DO NOT MATCH THE HASHES|EINTEGRITY[^\n]*|is not ` +
				`signed`), turnstone.KindIntegrity, "try again later, or use another registry: " +
			"the download does not match the registry or the lock"},
		{regexp.MustCompile(`the base has no [^\n]*`), turnstone.KindInvalid,
			"docs/templates.md says what each built-in template has"},
	}
}

// noNetworkHint is for builds without a network, which may be the cause of their failure.
const noNetworkHint = `the spec says network = "off": then not even the package registries can ` +
	`be reached`

// unreached matches programs' messages about an unreachable host.
var unreached = lazyregexp.New(
	`(?i)could not resolve|name resolution|unable to ` +
		`resolve|ENOTFOUND|EAI_AGAIN|getaddrinfo|connection refused|network is unreachable`)

// tailLines is the number of lines of a step's output in its error.
const tailLines = 4

// stepError returns the error of a failed step. The registry's own explanation comes first.
func stepError(spec *Spec, what string, exit int, tail []byte, reg *registry.Server) error {
	text := strings.TrimSpace(string(tail))
	out := turnstone.NewError("template.build", turnstone.KindInvalid, what, nil)
	if reg != nil {
		if err := reg.Problem(); err != nil {
			out.Kind, out.Err, out.Hint = turnstone.KindOf(err), err, turnstone.HintOf(err)
			return out
		}
	}
	for _, s := range symptoms() {
		if found := s.phrase.FindString(text); found != "" {
			out.Kind, out.Hint, out.Err = s.kind, s.hint,
				errors.New(strings.TrimSpace(strings.TrimPrefix(found, "E: ")))
			// programs do not know the reason
			if spec.NoNetwork && s.kind == turnstone.KindInvalid &&
				!strings.HasPrefix(found, "the base has no") {
				out.Hint = noNetworkHint
			}
			return out
		}
	}
	lines := strings.Split(text, "\n")
	last := strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
	out.Err = fmt.Errorf("exit status %d; it printed last:\n%s", exit, last)
	switch {
	case spec.NoNetwork:
		out.Hint = noNetworkHint
	case unreached.MatchString(text):
		out.Hint = `a build reaches the package registries only: name what else it needs in the ` +
			`spec, as network = ["example.com"]`
	}
	return out
}
