package apispec

import "testing"

// TestSpec checks that the check can fail: each case has a single error.
func TestSpec(t *testing.T) {
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		method, path, body string
		ok                 bool
	}{
		{"PUT", "/drives/root", `{"drive_id":"root","is_root_device":false,"path_on_host":"root"}`,
			true},
		{"PUT", "/drives/root", `{"drive_id":"other","is_root_device":false,"path_on_host":"root"}`,
			false},
		{"PUT", "/drives/root", `{"drive_id":"root","path_on_host":"root"}`, false},
		{"PUT", "/drives/root", `{"drive_id":"root","is_root_device":"no","path_on_host":"root"}`,
			false},
		{"PUT", "/drives/root", `{"drive_id":"root","is_root_device":false,"path":"root"}`, false},
		{"PUT", "/drives/root", `{"drive_id":"root","is_root_device":false,"cache_type":"None"}`,
			false},
		{"PUT", "/drives/root",
			`{"drive_id":"root","is_root_device":false,"rate_limiter":{"ops":{"size":1}}}`, false},
		{"PUT", "/drives/root", `not json`, false},
		{"PUT", "/drives/", `{"drive_id":"","is_root_device":false}`, false},
		{"POST", "/drives/root", `{"drive_id":"root","is_root_device":false}`, false},
		{"PUT", "/drive/root", `{}`, false},
		{"PUT", "/machine-config", `{"vcpu_count":1,"mem_size_mib":256}`, true},
		{"PUT", "/machine-config", `{"vcpu_count":33,"mem_size_mib":256}`, false},
		{"PUT", "/vsock", `{"guest_cid":3,"uds_path":"v"}`, true},
		{"PUT", "/vsock", `{"guest_cid":2,"uds_path":"v"}`, false},
		{"PUT", "/actions", `{"action_type":"InstanceStop"}`, false},
		{"GET", "/", "", true},
		{"GET", "/", "{}", false},
	} {
		if err := s.Request(tc.method, tc.path, []byte(tc.body)); (err == nil) != tc.ok {
			t.Errorf("%s %s %s: %v", tc.method, tc.path, tc.body, err)
		}
	}
	for _, tc := range []struct {
		method, path string
		status       int
		body         string
		ok           bool
	}{
		{"PUT", "/vsock", 204, "", true},
		{"PUT", "/vsock", 204, "{}", false},
		{"PUT", "/vsock", 200, "", false},
		{"PUT", "/vsock", 400, `{"fault_message":"no"}`, true},
		{"PUT", "/vsock", 500, `{"fault_message":"no"}`, true},
		{"PUT", "/vsock", 400, `{"fault_message":1}`, false},
		{"GET", "/", 200, `{"app_name":"a","id":"i","state":"Running","vmm_version":"1"}`, true},
		{"GET", "/", 200, `{"app_name":"a","id":"i","state":"Dead","vmm_version":"1"}`, false},
	} {
		if err := s.Answer(tc.method, tc.path, tc.status, []byte(tc.body)); (err == nil) != tc.ok {
			t.Errorf("%s %s %d %s: %v", tc.method, tc.path, tc.status, tc.body, err)
		}
	}
}
