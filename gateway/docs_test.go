package gateway

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestGuidesNameEveryCode holds the guides' tables against the codes: each is
// told with its status, and whether it is retriable.
func TestGuidesNameEveryCode(t *testing.T) {
	var rows []string
	for _, name := range []string{"producers", "consumers", "guide/operators"} {
		b, err := os.ReadFile("../docs/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			if regexp.MustCompile(`^\| \d`).MatchString(line) {
				rows = append(rows, line)
			}
		}
	}
	src, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\t\w+ +code = "([A-Z_]+)"$`).FindAllStringSubmatch(string(src), -1)
	if len(codes) < 25 {
		t.Fatalf("only %d codes found", len(codes))
	}
	for _, m := range codes {
		k := code(m[1]).kind()
		told := 0
		for _, row := range rows {
			if !strings.Contains(row, "`"+m[1]+"`") {
				continue
			}
			told++
			cells := strings.Split(row, "|")
			if !strings.Contains(cells[1], fmt.Sprint(k.status)) {
				t.Errorf("%s has status %d, the guide says %s", m[1], k.status, cells[1])
			}
			if want := map[bool]string{true: "yes", false: "no"}[k.retriable]; m[1] != "OUTCOME_UNKNOWN" && strings.TrimSpace(cells[3]) != want {
				t.Errorf("%s: retriable is %s, the guide says %s", m[1], want, cells[3])
			}
		}
		if told == 0 {
			t.Errorf("no guide tells %s", m[1])
		}
	}
}
