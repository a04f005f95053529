exec 5>trace; BASH_XTRACEFD=5; set -x; echo a; ls /dev/null; set +x; cat trace
