package kept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/testbench/client"
)

// Section is one part of what can be read of a region. Its name is the region, the
// kind of thing, and which of them; its lines are what was read.
type Section struct {
	Name  string
	Lines []string
}

// Snapshot reads all that clients and operators of the regions can read and that a
// restart does not change: no counters of a process, no time of reading.
func Snapshot(ctx context.Context, regions []*Region) ([]Section, error) {
	ruled, err := Ownership(ctx, regions)
	if err != nil {
		return nil, err
	}
	data, err := Data(ctx, regions)
	return append(ruled, data...), err
}

// Ownership is the part of a snapshot that says who may write: status, register and
// orphans.
func Ownership(ctx context.Context, regions []*Region) ([]Section, error) {
	return take(regions, func(t *taker) error {
		units, err := t.status(ctx)
		if err != nil {
			return err
		}
		return t.ownership(ctx, units)
	})
}

// Data is the rest of a snapshot: topics with all that is in them, and the audit.
func Data(ctx context.Context, regions []*Region) ([]Section, error) {
	return take(regions, func(t *taker) error {
		topics, err := t.topics(ctx)
		if err != nil {
			return err
		}
		for _, topic := range topics {
			if err := t.topic(ctx, topic); err != nil {
				return err
			}
		}
		return t.audit(ctx)
	})
}

func take(regions []*Region, part func(*taker) error) (all []Section, err error) {
	for _, r := range regions {
		t := taker{Region: r}
		if err := part(&t); err != nil {
			return nil, err
		}
		all = append(all, t.sections...)
	}
	return all, nil
}

// taker takes the snapshot of one region.
type taker struct {
	*Region
	sections []Section
}

func (t *taker) add(lines []string, name ...string) {
	t.sections = append(t.sections, Section{t.Name + " " + strings.Join(name, " "), lines})
}

// stopped is a partition of which a link sends no more. Why is a sentence for people, which
// may change.
type stopped struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Unit      string `json:"unit"`
	At        int64  `json:"at"`
}

// status is what of GET /v1/status was decided before, and the names of the units.
func (t *taker) status(ctx context.Context) (units []string, err error) {
	var s struct {
		Mode     string `json:"mode"`
		Register struct {
			State  string `json:"state"`
			Voters int    `json:"voters"`
		} `json:"register"`
		Regions []struct {
			Name  string `json:"name"`
			ID    int    `json:"id"`
			State string `json:"state"`
		} `json:"regions"`
		Links []struct {
			Name     string    `json:"name"`
			From     string    `json:"from"`
			To       string    `json:"to"`
			State    string    `json:"state"`
			Topics   int       `json:"topics"`
			Lag      *int64    `json:"lag_records"`
			Parked   []stopped `json:"parked"`
			Standing []stopped `json:"standing"`
		} `json:"links"`
		Units []struct {
			Unit    string  `json:"unit"`
			Owner   *string `json:"owner"`
			Epoch   uint64  `json:"epoch"`
			State   string  `json:"state"`
			Orphans uint64  `json:"orphans"`
		} `json:"units"`
		Residency json.RawMessage `json:"residency"`
	}
	if err := t.Manage(ctx, "/v1/status", &s); err != nil {
		return nil, err
	}
	lines := []string{"mode " + s.Mode, line(s.Register), "residency " + string(s.Residency)}
	for _, list := range [][]string{linesOf(s.Regions), linesOf(s.Links), linesOf(s.Units)} {
		lines = append(lines, list...)
	}
	for _, u := range s.Units {
		units = append(units, u.Unit)
	}
	t.add(lines, "status")
	return units, nil
}

// ownership is what the register holds of every unit, but for the revisions and the
// claims that a restart writes again, and the orphans of each.
func (t *taker) ownership(ctx context.Context, units []string) error {
	var register struct {
		Units []map[string]json.RawMessage `json:"units"`
	}
	if err := t.Manage(ctx, "/v1/ownership", &register); err != nil {
		return err
	}
	var lines []string
	for _, u := range register.Units {
		delete(u, "revision")
		lines = append(lines, line(u))
	}
	t.add(lines, "ownership")
	for _, unit := range units {
		all, err := list(ctx, t.Manage, "/v1/ownership/orphans", "orphans", url.Values{"unit": {unit}})
		if err != nil {
			return err
		}
		t.add(all, "orphans", unit)
	}
	return nil
}

// topicEntry is what a region knows of a topic, without the rule of a link, which is a
// sentence.
type topicEntry struct {
	Name string `json:"name"`
	Role string `json:"role"`
	Kind string `json:"kind"`

	Partitions int32  `json:"partitions"`
	Domain     string `json:"domain"`
	Policy     string `json:"policy"`
	Origin     string `json:"origin"`
	Of         string `json:"of"`
	Use        string `json:"use"`
	Links      []struct {
		Link  string `json:"link"`
		State string `json:"state"`
	} `json:"links"`
}

// topics is what the region knows of every topic, and its local ones.
func (t *taker) topics(ctx context.Context) (local []topicEntry, err error) {
	all, err := list(ctx, t.Manage, "/v1/topics", "topics", nil)
	if err != nil {
		return nil, err
	}
	slices.Sort(all)
	var lines []string
	for _, text := range all {
		var e topicEntry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			return nil, err
		}
		lines = append(lines, line(e))
		if e.Role == "local" {
			local = append(local, e)
		}
	}
	t.add(lines, "topics")
	return local, nil
}

// topic is a local topic in every view, its entities and its conflicts.
func (t *taker) topic(ctx context.Context, e topicEntry) error {
	keys := map[string]bool{}
	for _, view := range []string{"merged", "local", "origin:us", "origin:eu"} {
		all, err := list(ctx, t.Get, "/v1/topics/"+e.Name+"/records", "records", url.Values{"view": {view}})
		if err != nil {
			return fmt.Errorf("read view %s, from %s: %w", view, source(t.Name+" records "+view), err)
		}
		for _, text := range all {
			keys[keyOf(text)] = true
		}
		t.add(all, "records", e.Name, view)
	}
	if e.Kind == "entity" {
		var lines []string
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			text, err := t.entity(ctx, e.Name, key)
			if err != nil {
				return fmt.Errorf("read entity %s of %s in %s, from %s: %w", key, e.Name, t.Name, source(t.Name+" entities"), err)
			}
			lines = append(lines, key+" "+text)
		}
		t.add(lines, "entities", e.Name)
	}
	all, err := list(ctx, t.Get, "/v1/conflicts", "conflicts", url.Values{"topic": {e.Name}})
	if err != nil {
		return fmt.Errorf("read conflicts, from %s: %w", source(t.Name+" conflicts"), err)
	}
	t.add(all, "conflicts", e.Name)
	return nil
}

// entity is an entity, or that it is deleted, and at which version.
func (t *taker) entity(ctx context.Context, topic, key string) (string, error) {
	e, err := t.Entity(ctx, topic, key, "", "")
	var p *client.Problem
	if errors.As(err, &p) && p.Code == "ENTITY_UNKNOWN" {
		return "deleted, version " + p.Version, nil
	}
	return strings.TrimSpace(e.Raw), err
}

// keyOf is the text of a record's key.
func keyOf(record string) string {
	var r struct {
		Key *struct {
			Data string `json:"data"`
		} `json:"key"`
	}
	if json.Unmarshal([]byte(record), &r) != nil || r.Key == nil {
		return ""
	}
	return r.Key.Data
}

// list reads a list of the API to its end, each member as the bytes that were sent.
func list(ctx context.Context, get func(context.Context, string, any) error, path, member string, q url.Values) (lines []string, err error) {
	q = maps.Clone(q)
	if q == nil {
		q = url.Values{}
	}
	for {
		var page map[string]json.RawMessage
		if err := get(ctx, path+"?"+q.Encode(), &page); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		var members []json.RawMessage
		var next *string
		if err := errors.Join(json.Unmarshal(page[member], &members), json.Unmarshal(page["next"], &next)); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, m := range members {
			lines = append(lines, string(m))
		}
		if string(page["end"]) == "true" {
			return lines, nil
		}
		if next == nil || len(members) == 0 && *next == q.Get("from") {
			return nil, fmt.Errorf("read %s: the list neither ends nor goes on", path)
		}
		q.Set("from", *next)
	}
}

// audit is the verdict that counts for every record on its way to another region.
func (t *taker) audit(ctx context.Context) error {
	records, err := t.Committed(ctx, "_geogate.audit")
	if err != nil {
		return err
	}
	latest := map[string][]residency.Audit{} // by log, those that count, by offset
	for _, rec := range records {
		a, err := residency.ParseAudit(rec.Key, rec.Value)
		if err != nil {
			return fmt.Errorf("read audit of %s at %d/%d: %w", t.Name, rec.Partition, rec.Offset, err)
		}
		log := fmt.Sprintf("to %d %s/%d incarnation %d", a.To, a.Topic, a.Partition, a.Incarnation)
		latest[log] = append(latest[log], a)
	}
	var lines []string
	for _, log := range slices.Sorted(maps.Keys(latest)) {
		for _, run := range counting(latest[log]) {
			if run.Code == residency.NoRecord {
				continue // a barrier or another marker, which a seat adds at any time
			}
			lines = append(lines, fmt.Sprintf("%s: %d..%d %s %s", log, run.From, run.Until-1, run.Code, run.Rule))
		}
	}
	t.add(lines, "audit")
	return nil
}

// counting joins records of one log, in their order, into what counts.
func counting(all []residency.Audit) (runs []residency.Run) {
	type verdict struct {
		by  *residency.Audit
		run residency.Run
	}
	at := map[int64]verdict{}
	for i := range all {
		a := &all[i]
		for _, run := range a.Runs {
			for o := run.From; o < run.Until; o++ {
				if before, ok := at[o]; !ok || a.Supersedes(before.by) {
					at[o] = verdict{a, run}
				}
			}
		}
	}
	for _, o := range slices.Sorted(maps.Keys(at)) {
		v := at[o].run
		runs = residency.AppendRun(runs, residency.Run{From: o, Until: o + 1, Code: v.Code, Rule: v.Rule})
	}
	return runs
}

// line is a value as compact JSON.
func line(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func linesOf[T any](all []T) (lines []string) {
	for _, v := range all {
		lines = append(lines, line(v))
	}
	return lines
}
