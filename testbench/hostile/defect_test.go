//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

// TestPanicHoldsItsPartition: a program whose fold panics at some keys keeps running. The
// partition is held and says so; others take writes; without the defect everything that
// was answered is there.
func TestPanicHoldsItsPartition(t *testing.T) {
	d := deploy(t, spec{register: true, program: programWith(t, edit{
		"conflict/partition.go", "\t\tif err := s.foldItem(&items[i]); err != nil {",
		"\t\tif k := items[i].Event.Key; len(k) > 5 && string(k[:5]) == \"panic\" {\n\t\t\tpanic(\"told to\")\n\t\t}\n\t\tif err := s.foldItem(&items[i]); err != nil {",
	})})
	us := d.us
	stored := map[string]bool{}
	hold := func(n int) []string { // until n partitions are held
		var subjects []string
		for i := 0; len(subjects) < n; i++ {
			if i == 1000 {
				t.Fatalf("after %d writes only %v are held", i, subjects)
			}
			key := "panic of one partition"
			if n > 1 {
				key = fmt.Sprint("panic ", i)
			}
			_, err := us.Try(t.Context(), client.Write{Topic: "github", Key: key, Value: []byte(`0`)})
			if err == nil {
				stored[key] = true // the fold may also be faster than the answer
			}
			subjects = us.held(t)
		}
		return subjects
	}
	subject := hold(1)[0]
	if w := us.awaitWarning(t, warning.Defect, subject); !strings.Contains(w.Detail, "told to") || strings.Contains(w.Detail, "panic 0") {
		t.Errorf("the defect is described as %s", w)
	}
	us.awaitWarning(t, warning.PartitionHeld, subject)
	if o := us.command(t, "status", "--check"); o.code != 3 || !strings.Contains(o.out, "WARN PARTITION_HELD "+subject) {
		t.Errorf("status --check: %+v", o)
	}
	if code, text := us.readiness(t, ""); code != 200 {
		t.Errorf("with one partition of many held, readyz is %d %s", code, text)
	}

	for i := 1; i < 200; i++ { // other partitions take writes, the held one none
		key := fmt.Sprint("other ", i)
		a, err := us.Try(t.Context(), client.Write{Topic: "github", Key: key, Value: []byte(`1`)})
		switch client.Code(err) {
		case "":
			if err != nil || fmt.Sprintf("github/%d", a.Partition) == subject {
				t.Fatalf("write %d to partition %d: %v", i, a.Partition, err)
			}
			stored[key] = true
		case "PARTITION_HELD":
			if client.MayRetry(err) {
				t.Fatalf("%v may be retried", err)
			}
		default:
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if len(stored) < 100 {
		t.Errorf("only %d of 200 writes were stored", len(stored))
	}
	hold(4)
	if code, text := us.readiness(t, ""); code != 200 { // flights has partitions, too
		t.Errorf("with all partitions of one topic held, readyz is %d %s", code, text)
	}
	metrics, _, err := us.DoManagement(t.Context(), "GET", "/metrics", nil, nil)
	if err != nil || !strings.Contains(string(metrics), "geogate_defects_total 4\n") || !strings.Contains(string(metrics), `geogate_warnings{code="PARTITION_HELD",severity="error"} 4`) {
		t.Errorf("metrics: %v", err)
	}
	us.terminate(t)

	us.program = program(t)
	us.start(t)
	us.await(t, "without the defect, a view of all that was answered", func(ctx context.Context) error {
		records, err := us.Records(ctx, "github", "merged")
		for _, r := range records {
			delete(stored, r.Key.Text())
		}
		if err == nil && len(stored) > 0 {
			err = fmt.Errorf("the view lacks %v", stored)
		}
		return err
	})
}

// held are the subjects of the partitions that are held.
func (r *region) held(t *testing.T) (subjects []string) {
	t.Helper()
	s, err := r.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Warnings {
		if w.Code == warning.PartitionHeld {
			subjects = append(subjects, w.Subject)
		}
	}
	return subjects
}
