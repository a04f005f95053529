package secret

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// writesDown prints $1 in all of bash's quoting forms, one per line.
const writesDown = `V=$1; set -f; a=("$V"); w=($V)
declare -p V; echo "${a[@]@A}"; echo "${a[@]@K}"; echo "${V@Q}"; declare -p w
printf '%q\n' "$V" "x:$V" "x$V"; printf '%q ' "${w[@]}"; echo; echo "${w[@]@Q}"
export V; export -p | grep -a ' V='
set -x
[[ a =~ $V ]]
[[ a =~ "$V" ]]
[[ a == "$V" ]]
true "$V"
true $V
true x$V
true "(x)"$V"(x)"
X=$V
`

// wroteDown is the output of writesDown with $1 masked, without quotes and the blanks after them.
const wroteDown = `declare -- V=#
declare -a a=([0]=#)
0 #
#
declare -a w=([0]=#)
#
x:#
x#
#
#
declare -x V=#
+ [[ a =~ # ]]
+ [[ a =~ # ]]
+ [[ a == # ]]
+ true #
+ true #
+ true x#
+ true (x)#(x)
+ X=#
`

// TestBashWrites: a value is masked completely in all of bash's quoting forms.
func TestBashWrites(t *testing.T) {
	check := func(t interface{ Errorf(string, ...any) }, value string) {
		s, err := New([]string{"A=" + value})
		if err != nil {
			return
		}
		for _, locale := range []string{"C", "C.UTF-8"} {
			cmd := exec.Command("bash", "-c", writesDown, "x", value)
			cmd.Env = append(os.Environ(), "LC_ALL="+locale)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%q: %v: %s", value, err, out)
			}
			got := strings.ReplaceAll(s.Written().Mask(string(out)), "[secret A]", "#")
			got = strings.ReplaceAll(strings.NewReplacer("'", "", `"`, "", `\`, "", "$",
				"").Replace(got), "# \n", "#\n")
			if got != wroteDown {
				t.Errorf("%q in %s: %s\nof\n%s", value, locale, got, out)
			}
		}
	}
	for _, value := range []string{"p&ss$XYZZYrd", "pa$sXYZZY\"q\\w`z", "foo bXYZZY$r baz",
		"~abc:~d=~e", "' aaaa", "aaaa '", "it's a\tqu\"ote", "$o.[m]e (r)e+{g}e^x|",
		"h\u00e9ll\u00f6 w\u00f6rld"} {
		check(t, value)
	}
	rapid.Check(t, func(t *rapid.T) {
		letter := rapid.SampledFrom([]byte("abXY  \t~:=#'\"\\$`!&*?[](){}|;<>^.+-%/,@\x02"))
		check(t, strings.TrimSpace(string(rapid.SliceOfN(letter, 6, 14).Draw(t, "value"))))
	})
}

// TestWordsAlone: the words of a value are masked only in sequence.
func TestWordsAlone(t *testing.T) {
	s := set(t, "A=correct horse's password").Written()
	for text, want := range map[string]string{
		"+ true correct 'horse'\\''s' password": "+ true [secret A]",
		"the password of horse's":               "the password of horse's",
	} {
		if got := s.Mask(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestStripWritten: a variable that contains a quoted value is removed.
func TestStripWritten(t *testing.T) {
	s := set(t, "A=p&ss'$XYZZYrd")
	kept, dropped := s.Strip([]string{`COPY='p&ss'\''$XYZZYrd'`, `P=declare -x A="p&ss'\$XYZZYrd"`,
		`p\&ss\'\$XYZZYrd=1`, "B=2"})
	if len(kept) != 1 || kept[0] != "B=2" || len(dropped) != 3 {
		t.Errorf("kept %q, dropped %q", kept, dropped)
	}
}
