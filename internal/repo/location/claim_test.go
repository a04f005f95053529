package location_test

import (
	"net/http"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/location"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

// TestLateClaim: of a bucket whose lists are late nobody becomes the owner before they have the claim:
// they might lack another's.
func TestLateClaim(t *testing.T) {
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "../../store/blob/s3/testserver")
	if err != nil {
		t.Fatal(err)
	}
	server, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.End)
	if err := server.Bucket(t.Context(), "claims"); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_S3": server.URL,
		"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": s3test.SecretKey} {
		t.Setenv(name, value)
	}
	open := func(where string) error {
		_, _, err := location.Open(t.Context(), &statedir.Dir{Root: t.TempDir()}, where, nil)
		return err
	}
	server.Plan(s3test.List(s3test.None, s3test.None, s3test.None, s3test.LateList))
	if err := open("s3://claims/once"); err != nil {
		t.Errorf("a list that is late once: %v", err)
	}
	server.Plan(func(*http.Request) s3test.Fault { return s3test.LateList })
	err = open("s3://claims/always")
	if err == nil || turnstone.KindOf(err) != turnstone.KindUnavailable || !strings.Contains(err.Error(), "lists") {
		t.Errorf("lists that are always late: %v (%s)", err, turnstone.KindOf(err))
	}
}
