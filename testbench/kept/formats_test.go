package kept_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/testbench/kept"
)

var (
	errType     = errors.New("type of record not known")
	errUnstored = errors.New("an envelope of no region")
)

// format is a topic's format: where it is told, and its reader.
type format struct {
	document string
	reader   string
	read     func(*kgo.Record) error
}

// formats are those of the topics that a region has whose peer is another.
func formats(peer string) map[string]format {
	return map[string]format{
		control.TopicTopics:         {"control.md", "control.ParseTopic", func(r *kgo.Record) error { _, err := control.ParseTopic(r.Key, r.Value); return err }},
		control.TopicControl:        {"control.md", "internal/control", controlRecord},
		control.ControlFrom(peer):   {"control.md", "internal/control", controlRecord},
		control.TopicIncarnations:   {"control.md", "control.ParseIncarnation", func(r *kgo.Record) error { _, err := control.ParseIncarnation(r.Key, r.Value); return err }},
		control.PositionsFrom(peer): {"link.md", "internal/offsets, replicate", positionRecord},
		control.RunsFrom(peer):      {"link.md", "offsets.ParseRuns", runsRecord},
		control.TopicAudit:          {"audit.md", "residency.ParseAudit", func(r *kgo.Record) error { _, err := residency.ParseAudit(r.Key, r.Value); return err }},
		mirror.OwnershipTopic:       {"ownership.md", "mirror.ParseTestimony", ownershipRecord},
		mirror.OwnersTopic:          {"ownership.md", "mirror.ParseTestimony", ownershipRecord},
		"flights":                   {"envelope.md", "event.Decode", envelope},
		"github":                    {"envelope.md", "event.Decode", envelope},
		peer + ".flights":           {"envelope.md", "event.Decode", envelope},
		"flights.merged":            {"merged.md", "event.Decode", envelope},
		"github.merged":             {"merged.md", "event.Decode", envelope},
		control.TopicConflicts:      {"merged.md", "a JSON object", object},
		"_geogate.state.flights":    {"state.md", "conflict/view, by TestGoesOnWithoutStores", anything},
		"_geogate.state.github":     {"state.md", "conflict/view, by TestGoesOnWithoutStores", anything},
	}
}

// TestFormats: every record of every kept topic is read by the present code, and none
// of the topics is empty. No instance runs: what fails here is a reader.
func TestFormats(t *testing.T) {
	d := &deployment{dir: unpack(t), regions: map[string]*kept.Region{}, seeds: map[string][]string{}}
	t.Cleanup(func() { d.stop(t) })
	if err := d.kafkas(); err != nil {
		t.Fatal(err)
	}
	for name, peer := range map[string]string{"us": "eu", "eu": "us"} {
		r := &kept.Region{Name: name, Seeds: d.seeds[name]}
		for topic, f := range formats(peer) {
			all, err := r.Committed(limit(t), topic)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 0 && !(topic == control.TopicIncarnations && name == "eu") {
				t.Errorf("topic %s of %s holds nothing", topic, name)
			}
			for _, rec := range all {
				if rec.Value == nil && strings.HasPrefix(topic, "_geogate.") {
					continue // a tombstone
				}
				if err := f.read(rec); err != nil {
					t.Errorf("topic %s of %s, partition %d, offset %d: the format of docs/format/%s is not read any more by %s: %v",
						topic, name, rec.Partition, rec.Offset, f.document, f.reader, err)
				}
			}
		}
	}
}

// TestConfigurationIsRead: the kept policies load, and every instance has its mark.
func TestConfigurationIsRead(t *testing.T) {
	dir := unpack(t)
	if _, err := ownership.LoadPolicy(filepath.Join(dataDir, "ownership.yaml")); err != nil {
		t.Errorf("ownership.yaml (docs/schema/ownership-v1.json): %v", err)
	}
	src, err := os.ReadFile(filepath.Join(dataDir, "residency.yaml"))
	if err == nil {
		_, err = residency.Parse("residency.yaml", src, []string{"us", "eu"})
	}
	if err != nil {
		t.Errorf("residency.yaml (docs/schema/residency-v1.json): %v", err)
	}
	for _, name := range []string{"us", "eu"} {
		if _, err := os.Stat(filepath.Join(dir, name, "hwm")); err != nil {
			t.Errorf("high-water mark of %s: %v", name, err)
		}
	}
}

func controlRecord(r *kgo.Record) (err error) {
	kind, ok := control.TypeOf(r.Key)
	if !ok {
		return errType
	}
	switch kind {
	case control.TypeBarrier:
		_, err = control.ParseBarrier(r.Key, r.Value)
	case control.TypeProgress:
		_, err = control.ParseProgress(r.Key, r.Value)
	case control.TypeIncarnation:
		_, err = control.ParseIncarnation(r.Key, r.Value)
	case control.TypeRestriction:
		_, err = control.ParseRestriction(r.Key, r.Value)
	default:
		err = errType
	}
	return err
}

func positionRecord(r *kgo.Record) error {
	if string(r.Key) == replicate.GenerationKey {
		_, err := replicate.ParseGeneration(r.Value)
		return err
	}
	if _, ok, err := replicate.ParseIncident(r.Key, r.Value); ok {
		return err
	}
	_, _, err := offsets.ParsePositionKey(r.Key)
	_, errValue := offsets.ParsePosition(r.Value)
	return errors.Join(err, errValue)
}

func runsRecord(r *kgo.Record) error {
	_, _, first, err := offsets.ParseKey(r.Key)
	if err != nil {
		return err
	}
	runs, err := offsets.ParseRuns(first, r.Value)
	if err == nil && len(runs) == 0 {
		err = errors.New("no runs")
	}
	return err
}

func ownershipRecord(r *kgo.Record) error {
	if strings.HasPrefix(string(r.Key), "region:") {
		return object(r)
	}
	_, _, err := mirror.ParseTestimony(r.Value)
	return err
}

// envelope takes records that came without a gateway too.
func envelope(r *kgo.Record) error {
	e, _, stamped, err := event.Decode(event.FromHeaders(r.Headers))
	if err == nil && stamped && e.Region == 0 {
		err = errUnstored
	}
	return err
}

func object(r *kgo.Record) error {
	if len(r.Value) < 2 || r.Value[0] != '{' {
		return fmt.Errorf("not an object: %.40q", r.Value)
	}
	return nil
}

func anything(*kgo.Record) error { return nil }
