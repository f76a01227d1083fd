package register

import "testing"

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		version string
		want    bool
	}{
		{"2.14.3", true},
		{"2.12.9", true},
		{"1.99.99", true},
		{"2.14.4", false},
		{"2.14.10", false},
		{"2.15.2", false},
		{"3.0.0", false},
		{"2.14.4-RC.1", false},
		{"2.14.3-RC.1", true},
		{"", false},
	} {
		if got := older(tt.version, "2.14.4"); got != tt.want {
			t.Errorf("%q is older than 2.14.4: %t", tt.version, got)
		}
	}
}
