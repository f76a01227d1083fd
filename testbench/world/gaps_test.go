package world_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// trim deletes what a topic of a region has, but for the last offsets of each partition.
func trim(t *testing.T, r *world.Region, topic string, keep int64) {
	t.Helper()
	if err := r.TrimTopic(topic, keep); err != nil {
		t.Fatal(err)
	}
}

// incidents are those of a region, of a kind.
func incidents(t *testing.T, r *world.Region, kind string) []gateway.Incident {
	t.Helper()
	var list gateway.IncidentList
	if err := r.Client().Manage(limit(t), "/v1/incidents", &list); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Incidents, func(x gateway.Incident) bool { return x.Kind != kind })
}

// awaitIncidents waits until a region has so many incidents of a kind and state.
func awaitIncidents(t *testing.T, w *world.World, r *world.Region, kind, state string, n int) (all []gateway.Incident) {
	t.Helper()
	w.Eventually(fmt.Sprintf("%d %s incidents of kind %s in %s", n, state, kind, r.Name), func() error {
		all = slices.DeleteFunc(incidents(t, r, kind), func(x gateway.Incident) bool { return x.State != state })
		if len(all) != n {
			return fmt.Errorf("there are %+v", all)
		}
		return nil
	})
	return all
}

// accept has a region go on without what an incident has lost, as it was seen.
func accept(t *testing.T, r *world.Region, x gateway.Incident) (result gateway.AcceptResult) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"to": strconv.FormatInt(x.To, 10), "reason": "a test", "by": "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	raw, _, err := r.Client().DoManagement(limit(t), "POST", "/v1/incidents/"+x.ID+"/accept", body, http.Header{"Content-Type": {"application/json"}})
	if client.Code(err) == "INCIDENT_CHANGED" {
		return gateway.AcceptResult{Exit: 3, Detail: err.Error()}
	}
	if err == nil {
		err = client.Decode(raw, &result)
	}
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func acceptAll(t *testing.T, r *world.Region, xs []gateway.Incident) {
	t.Helper()
	for _, x := range xs {
		if result := accept(t, r, x); result.Exit != 0 || result.Incident.State != "accepted" || result.Incident.Accepted.By != "somebody" {
			t.Fatalf("accept %s: %+v", x.ID, result)
		}
	}
}

// gapWarnings are the subjects of a region's warnings about lost records.
func gapWarnings(t *testing.T, r *world.Region) (subjects []string) {
	t.Helper()
	for _, x := range status(t, r).Warnings {
		if x.Code == warning.Gap {
			subjects = append(subjects, x.Subject)
		}
	}
	return subjects
}

// lacks is what the merged view of a topic says it lacks.
func lacks(t *testing.T, r *world.Region, topic string) string {
	t.Helper()
	_, out, err := allKeys(limit(t), r, topic)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// awaitShown waits until a region shows a write in its merged view.
func awaitShown(t *testing.T, w *world.World, r *world.Region, topic, key string) {
	t.Helper()
	w.Eventually(key+" to be shown in "+r.Name, func() error {
		keys, _, err := allKeys(limit(t), r, topic)
		if err == nil && keys[key] == 0 {
			err = fmt.Errorf("keys %v", keys)
		}
		return err
	})
}

// copied waits until the log of a copy has had records with all these keys. Lag is no sign
// of that: it counts what the link has last heard of.
func copied(t *testing.T, w *world.World, from, to *world.Region, topic string, keys ...string) {
	t.Helper()
	w.Eventually(fmt.Sprintf("%d records of %s to be copied to %s", len(keys), from.Name, to.Name), func() error {
		recs, err := to.Read(limit(t), from.Name+"."+topic, true)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if !slices.ContainsFunc(recs, func(r *kgo.Record) bool { return string(r.Key) == key }) {
				return fmt.Errorf("%s is not among %d", key, len(recs))
			}
		}
		return nil
	})
}

// TestGapBeforeTheFold: retention deletes records of a copy before the region's fold has had
// them, because its gateway was away for longer. Only the partitions that lack some are held,
// until somebody accepts it; then the fold goes on where the log begins. What was accepted is
// not reported again, what is lost later is.
func TestGapBeforeTheFold(t *testing.T) {
	for _, topic := range []string{flights, github} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			w := world.Start(t, world.Options{})
			us, eu := w.Region("us"), w.Region("eu")
			us.Put(topic, "first", `0`)
			eu.Put(topic, "first-eu", `0`)
			w.Settle()
			w.Kill("eu") // its Kafka runs on, and the link of us writes into it
			var keys []string
			for i := range 20 {
				keys = append(keys, fmt.Sprint("k", i))
				us.Put(topic, keys[i], fmt.Sprint(i))
			}
			copied(t, w, us, eu, topic, keys...)
			trim(t, eu, "us."+topic, 0)
			w.StartAgain("eu")
			eu.AwaitReady()
			open := awaitIncidents(t, w, eu, "fold", "open", 2)
			acceptAll(t, eu, incidents(t, eu, "keys")) // an index without keys had not noted its progress
			for i, x := range open {
				if x.Topic != topic || x.Log != "us."+topic || x.Partition != int32(i) || x.Region != "us" || x.Count != x.To-x.From+1 || x.Count < 1 ||
					!strings.Contains(x.Detail, "views and reads lack them") || x.Remedy == "" || x.Consequence == "" || x.Accepted != nil {
					t.Errorf("incident %+v", x)
				}
			}
			last := us.Put(topic, "last", `1`)
			eu.Put(topic, "mine", `1`) // eu's own writes go on
			awaitShown(t, w, us, topic, "mine")
			awaitShown(t, w, eu, topic, "mine")
			copied(t, w, us, eu, topic, "last")
			if keys, missing, err := allKeys(limit(t), eu, topic); err != nil || keys["last"] > 0 || missing != fmt.Sprintf("%s/0, %s/1", topic, topic) {
				t.Errorf("eu shows %v, lacks %q, %v", keys, missing, err)
			}
			if got, want := gapWarnings(t, eu), []string{topic + "/0", topic + "/1"}; !slices.Equal(got, want) || len(gapWarnings(t, us)) > 0 {
				t.Errorf("warnings %v %v", got, status(t, eu).Warnings)
			}
			grown := open[0]
			if grown.To--; accept(t, eu, grown).Exit != 3 {
				t.Error("accepted less than was lost")
			}
			held := open[0]
			if last.Partition == held.Partition {
				held = open[1]
			}
			acceptAll(t, eu, slices.DeleteFunc(slices.Clone(open), func(x gateway.Incident) bool { return x.Partition == held.Partition }))
			awaitShown(t, w, eu, topic, "last")
			if got := lacks(t, eu, topic); got != fmt.Sprintf("%s/%d", topic, held.Partition) {
				t.Errorf("lacks %q with partition %d held", got, held.Partition)
			}
			acceptAll(t, eu, []gateway.Incident{held})
			if result := accept(t, eu, held); result.Exit != 3 {
				t.Errorf("accepted twice: %+v", result)
			}
			w.Settle()
			if got := lacks(t, eu, topic); got != "" || len(gapWarnings(t, eu)) > 0 {
				t.Errorf("lacks %q, warnings %v", got, gapWarnings(t, eu))
			}
			w.Stop("eu")
			w.DeleteStore("eu")
			w.StartAgain("eu")
			eu.AwaitReady()
			us.Put(topic, "later", `1`)
			w.Settle()
			if n := len(incidents(t, eu, "fold")); n != 2 {
				t.Errorf("%d incidents after a start without store", n)
			}
			w.Kill("eu")
			us.Put(topic, "gone", `1`)
			copied(t, w, us, eu, topic, "gone")
			trim(t, eu, "us."+topic, 0)
			w.StartAgain("eu")
			awaitIncidents(t, w, eu, "fold", "open", 1)
		})
	}
}

// warned waits until a region has exactly these warnings of two codes that come before a gap.
func warned(t *testing.T, w *world.World, r *world.Region, want ...string) {
	t.Helper()
	w.Eventually(fmt.Sprintf("warnings %q in %s", want, r.Name), func() error {
		var got []string
		for _, x := range status(t, r).Warnings {
			if x.Code == warning.GapNear || x.Code == warning.RetentionShort {
				got = append(got, x.String())
			}
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			return fmt.Errorf("there are %q", got)
		}
		return nil
	})
}

// TestGapIsAnnounced: before records are deleted that somebody needs, the status says so: of
// settings, whoever changes them, and of topics that nobody has declared; of a log whose
// start comes near what a link has not copied; and of a copy that is not kept.
func TestGapIsAnnounced(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{RetentionEvery: 100 * time.Millisecond, Topics: []world.Topic{{Name: "undeclared", Partitions: 1}}})
	us, eu := w.Region("us"), w.Region("eu")
	for _, topic := range []string{github, flights, "undeclared"} {
		us.Put(topic, "first", `0`)
	}
	w.Settle()
	set := func(r *world.Region, topic, key, value string) {
		t.Helper()
		if err := r.SetTopic(topic, key, value); err != nil {
			t.Fatal(err)
		}
	}
	warned(t, w, us)
	warned(t, w, eu)
	set(us, "undeclared", "retention.ms", "60000")
	set(us, "_geogate.state.flights", "cleanup.policy", "compact,delete")
	set(us, "_geogate.positions.eu", "cleanup.policy", "delete")
	set(us, flights, "cleanup.policy", "compact")
	set(eu, "us.github", "retention.ms", "0")
	warned(t, w, us, "RETENTION_SHORT _geogate.positions.eu: cleanup.policy is delete and must be compact", "RETENTION_SHORT _geogate.state.flights: cleanup.policy is compact,delete and must be compact",
		"RETENTION_SHORT flights: cleanup.policy is compact and must be delete", "RETENTION_SHORT undeclared: retention.ms is 60000 and must be at least")
	warned(t, w, eu, "RETENTION_SHORT us.github: retention.ms is 0 and must be at least")
	set(us, "undeclared", "retention.ms", "-1")
	set(us, "_geogate.state.flights", "cleanup.policy", "compact")
	set(us, "_geogate.positions.eu", "cleanup.policy", "compact")
	set(us, flights, "cleanup.policy", "delete")
	set(eu, "us.github", "retention.ms", "604800000")
	warned(t, w, us)
	warned(t, w, eu)
	const some = 20
	var keys []string
	for i := range some {
		keys = append(keys, fmt.Sprint("k", i))
		us.Put("undeclared", keys[i], `1`)
	}
	copied(t, w, us, eu, "undeclared", keys...)
	w.Settle() // the link knows that they are
	w.CutAll()
	for i := range some {
		us.Put("undeclared", keys[i], `2`)
	}
	trim(t, us, "undeclared", some+1) // one that was copied, and all that were not
	warned(t, w, us, "GAP_NEAR undeclared/0: link us-eu has read up to offset", "RETENTION_SHORT undeclared/0: records less than")
	w.HealAll()
	w.Settle()
	warned(t, w, us, "RETENTION_SHORT undeclared/0: records less than")
}

// TestLostBeginning: a topic of geogate's own that does not begin at its beginning any more is
// an incident, which ends when it is accepted, also over a start; what is deleted later is
// another one.
func TestLostBeginning(t *testing.T) {
	t.Parallel()
	const topic = "_geogate.state.flights"
	w := world.Start(t, world.Options{Regions: 1, RetentionEvery: 100 * time.Millisecond})
	us := w.Region("us")
	gaps := func(want int) {
		t.Helper()
		w.Eventually(fmt.Sprintf("%d warnings of %s", want, topic), func() error {
			var got []string
			for _, x := range status(t, us).Warnings {
				if strings.HasPrefix(x.Subject, topic) {
					got = append(got, x.String())
				}
			}
			if len(got) != want || want > 0 && !strings.HasPrefix(got[0], "GAP "+topic+"/") {
				return fmt.Errorf("there are %q", got)
			}
			return nil
		})
	}
	us.Put(flights, "a", `1`)
	w.Settle()
	gaps(0)
	lose := func() (x gateway.Incident) {
		t.Helper()
		trim(t, us, topic, 0)
		x = awaitIncidents(t, w, us, "internal", "open", 1)[0]
		gaps(1)
		if x.Topic != topic || x.Log != topic || x.Region != "" || !strings.Contains(x.Detail, "read from its beginning") {
			t.Errorf("%+v", x)
		}
		if r := accept(t, us, x); r.Exit != 0 {
			t.Fatalf("accepted: %+v", r)
		}
		gaps(0)
		return x
	}
	first := lose()
	w.Stop("us")
	w.StartAgain("us")
	us.AwaitReady()
	awaitIncidents(t, w, us, "internal", "accepted", 1)
	gaps(0)
	us.Put(flights, "a", `2`) // of the same key, so in the same partition
	w.Settle()
	if second := lose(); first.From != 0 || second.From != first.To+1 || second.Partition != first.Partition {
		t.Errorf("first %d to %d, second %d to %d", first.From, first.To, second.From, second.To)
	}
}

// TestGapOfALink: retention deletes records before a link has copied them. The link stops
// that partition and its region has an incident, which says where what will be missing. Once
// it is accepted the link goes on; a start finds nothing new, and a later loss is another one.
func TestGapOfALink(t *testing.T) {
	for _, topic := range []string{flights, github} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			w := world.Start(t, world.Options{})
			us, eu := w.Region("us"), w.Region("eu")
			at := us.Put(topic, "k", `0`)
			w.Settle()
			lose := func() {
				t.Helper()
				w.Cut("us", "eu")
				us.Put(topic, "k", `1`)
				us.Put(topic, "k", `2`)
				w.Stop("us") // the link forgets what it has fetched
				trim(t, us, topic, 0)
				w.StartAgain("us")
				us.AwaitReady()
				us.Put(topic, "k", `3`)
				w.Heal("us", "eu")
			}
			lose()
			open := awaitIncidents(t, w, us, "link", "open", 1)
			x := open[0]
			if x.Topic != topic || x.Log != topic || x.Partition != at.Partition || x.Region != "us" || x.Target != "eu" || x.Count < 2 ||
				!strings.Contains(x.Detail, "reads in eu lack them") || !strings.Contains(x.Consequence, "will be missing in eu") {
				t.Errorf("incident %+v", x)
			}
			w.Eventually("the link to say which incident it has", func() error {
				parked := status(t, us).Links[0].Parked
				if len(parked) != 1 || !strings.Contains(parked[0].Reason, "geogate incident show "+x.ID) {
					return fmt.Errorf("parked %+v", parked)
				}
				return nil
			})
			if n := len(incidents(t, eu, "fold")) + len(incidents(t, eu, "link")); n != 0 {
				t.Errorf("%d incidents in eu", n)
			}
			eu.Put(topic, "mine", `1`) // the other direction goes on
			awaitShown(t, w, us, topic, "mine")
			acceptAll(t, us, open)
			us.Put(topic, "after", `1`)
			awaitShown(t, w, eu, topic, "after")
			w.Eventually("the link to run", func() error {
				if l := status(t, us).Links[0]; l.State != "running" || len(l.Parked) > 0 {
					return fmt.Errorf("link %+v", l)
				}
				return nil
			})
			w.Stop("us")
			w.StartAgain("us")
			us.AwaitReady()
			us.Put(topic, "again", `1`)
			awaitShown(t, w, eu, topic, "again")
			awaitIncidents(t, w, us, "link", "accepted", 1)
			lose()
			if more := awaitIncidents(t, w, us, "link", "open", 1); more[0].From <= x.To {
				t.Errorf("after %+v comes %+v", x, more[0])
			}
		})
	}
}

// TestGapInTheOwnLog: a gateway is killed before it has folded what was written natively, and
// retention deletes that. Writes are stored meanwhile.
func TestGapInTheOwnLog(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{})
	us := w.Region("us")
	us.Put(github, "first", `0`, world.Idem("k"))
	w.Settle()
	w.CutAll()
	w.Kill("us")
	for i := range 20 {
		if err := us.Produce(limit(t), &kgo.Record{Topic: github, Key: []byte(fmt.Sprint("n", i)), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	trim(t, us, github, 5)
	w.HealAll()
	w.StartAgain("us")
	us.AwaitReady()
	open := awaitIncidents(t, w, us, "fold", "open", 1)
	if x := open[0]; x.Log != github || x.Partition != 0 || x.Region != "us" {
		t.Errorf("incident %+v", x)
	}
	us.Put(github, "stored", `1`)
	acceptAll(t, us, open)
	awaitShown(t, w, us, github, "n19")
	awaitShown(t, w, us, github, "stored")
	if parked := status(t, us).Links[0].Parked; len(parked) == 0 {
		t.Error("the link has copied what is left without an incident")
	}
}

// TestGapOfKeys: a store is lost, and the log has lost records whose keys are within the
// window: a retry is refused, not stored a second time, until somebody accepts that. It is
// so, too, if nobody can tell any more whether a gateway has written to the topic.
func TestGapOfKeys(t *testing.T) {
	for name, lost := range map[string]bool{"barriers known": false, "barriers lost": true} {
		t.Run(name, func(t *testing.T) { gapOfKeys(t, lost) })
	}
}

func gapOfKeys(t *testing.T, barriersLost bool) {
	t.Parallel()
	w := world.Start(t, world.Options{Regions: 1})
	us := w.Region("us")
	first := us.Put(github, "a", `1`, world.Idem("once"))
	w.Settle()
	trim(t, us, github, 0)
	w.Stop("us")
	if barriersLost {
		trim(t, us, control.TopicControl, 0)
	}
	w.DeleteStore("us")
	w.StartAgain("us")
	us.AwaitReady()
	again := client.Write{Topic: github, Key: "a", Value: []byte(`1`), Idem: "once"}
	var err error
	w.Eventually("the log to be read again", func() error {
		if _, err = us.Try(limit(t), again); client.Code(err) == "NOT_READY" {
			return err
		}
		return nil
	})
	if p := problem(t, err, 503, "KEYS_LOST"); !strings.Contains(p.Detail, "idempotency key") {
		t.Errorf("problem %+v", p)
	}
	us.Put(github, "a", `2`) // without a key there is nothing to know
	open := awaitIncidents(t, w, us, "keys", "open", 1)
	if x := open[0]; x.Topic != github || x.Partition != first.Partition || x.From != 0 {
		t.Errorf("incident %+v", x)
	}
	// It is held still after another start, with the store.
	w.Stop("us")
	w.StartAgain("us")
	us.AwaitReady()
	if _, err := us.Try(limit(t), again); client.Code(err) != "KEYS_LOST" {
		t.Errorf("after a start: %v", err)
	}
	if n := len(incidents(t, us, "fold")); n != 0 {
		t.Errorf("%d incidents of the fold, which has had everything", n)
	}
	acceptAll(t, us, open)
	if a := us.Put(github, "a", `1`, world.Idem("once")); a.Replayed {
		t.Errorf("answer %s", a.Raw)
	}
}
