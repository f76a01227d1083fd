//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// The border tap: records whose every part holds a canary are written to eu, and
// after the run everything outside eu is searched for them. The gateways run with
// --uncompressed, so that bytes are found where they are; a scan that opened
// compressed batches would be as blind as its decoder. That it is not blind is
// shown by canaries of records that may leave: they must be found outside, in
// every kind of place, by the same search.

// planted is a canary and where it must be found.
type planted struct {
	canary
	inTap, inFiles bool // of eu
	leaves         bool // and in the link, and in us's files and answers
}

// leakTest plants canaries and looks for them.
type leakTest struct {
	w *threeSites
	// reason is that of every fence: it goes through the register by design.
	reason canary

	mu      sync.Mutex
	all     []planted
	leaving map[place]client.Answer // the last records that may leave
}

func newLeakTest(w *threeSites) *leakTest {
	return &leakTest{w: w, leaving: make(map[place]client.Answer), reason: newCanary("reason of a fence", "-")}
}

// canary makes one and remembers it.
func (l *leakTest) canary(p planted, slot, middle string) string {
	p.canary = newCanary(slot, middle)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, p)
	return p.text
}

// specimen is a record that a rule of threeSitesResidency is about.
type specimen struct {
	topic, prefix string // of the key
	headers       []client.Header
	leaves        bool
	what          string
}

var specimens = []specimen{
	{githubTopic, "", nil, false, "denied by its key"},
	{githubTopic, publicKeys, nil, true, "allowed by its key"},
	{patientsTopic, "", nil, false, "without the header that a rule asks for"},
	{patientsTopic, "", []client.Header{{Name: "class", Value: "secret"}}, false, "denied by a header"},
	{patientsTopic, "", []client.Header{{Name: "class", Value: "public"}, {Name: "hold"}}, false, "allowed by one rule and denied by another"},
	{patientsTopic, "", []client.Header{{Name: "class", Value: "public"}}, true, "allowed by a header"},
	{privateTopic, "", nil, false, "of a topic without a rule"},
}

// odd is what encodings change.
const odd = `é"/<+ &\`

// plant writes every specimen to eu. when says at which step of the run; what is
// written while the line is cut, and is an orphan by the time it is healed, must
// not cross either.
func (l *leakTest) plant(ctx context.Context, when string, cut bool) error {
	for _, sp := range specimens {
		p := planted{inTap: true, inFiles: true, leaves: sp.leaves && !cut}
		slot := func(part string) string {
			return fmt.Sprintf("%s of a record of %s, %s, %s", part, sp.topic, sp.what, when)
		}
		w := client.Write{
			Topic: sp.topic, Key: sp.prefix + l.canary(p, slot("key"), odd),
			Idem:    l.canary(planted{inTap: true}, slot("idempotency key"), "-"),
			Headers: append(slices.Clone(sp.headers), client.Header{Name: l.canary(p, slot("header name"), "-"), Value: l.canary(p, slot("header value"), odd)}),
			Value: fmt.Appendf(nil, `{"name":%s,"map":{%s:1},"list":["x",%s]}`,
				client.Quote(l.canary(p, slot("leaf"), odd)), client.Quote(l.canary(p, slot("member name"), odd)), client.Quote(l.canary(p, slot("element"), odd))),
		}
		a, err := l.w.eu.store(ctx, w)
		if err != nil {
			return err
		}
		if p.leaves {
			l.leaving[place{sp.topic, l.w.eu.id, a.Partition}] = a
		}
		if sp.topic == githubTopic || sp.leaves {
			continue
		}
		// A tombstone has nothing but a key and headers to tell by.
		w.Value, w.Idem = nil, l.canary(planted{inTap: true}, slot("idempotency key of the tombstone"), "-")
		if _, err := l.w.eu.store(ctx, w); err != nil {
			return err
		}
	}
	return l.plantOdd(ctx, when)
}

// plantOdd writes records of unusual shape that must not leave: a key that is no
// text, a value that is no JSON, and a line of a stream.
func (l *leakTest) plantOdd(ctx context.Context, when string) error {
	p := planted{inTap: true, inFiles: true}
	slot := func(part string) string { return fmt.Sprintf("%s, %s", part, when) }
	binary := append([]byte{0xff, 0xfe, 0}, l.canary(p, slot("binary key"), "-")...)
	body := fmt.Appendf(nil, `{"key":{"type":"binary","data":%q},"value":{"type":"binary","data":%q},"idempotency_key":%q}`,
		base64.StdEncoding.EncodeToString(binary), base64.StdEncoding.EncodeToString([]byte(l.canary(p, slot("binary value"), odd))),
		l.canary(planted{inTap: true}, slot("idempotency key of a binary record"), "-"))
	if _, _, err := l.w.eu.gateway.Do(ctx, http.MethodPost, "/v1/topics/"+patientsTopic+"/records", body, http.Header{"Content-Type": {"application/json"}}); err != nil {
		return fmt.Errorf("plant a binary record: %w", err)
	}
	q := url.Values{"key": {l.canary(p, slot("key in a query"), odd)}}
	_, _, err := l.w.eu.gateway.Do(ctx, http.MethodPost, "/v1/topics/"+githubTopic+"/records?"+q.Encode(), []byte(l.canary(p, slot("raw value"), odd)), http.Header{
		"Content-Type":           {"text/plain"},
		"Kafka-Header-Canary":    {l.canary(p, slot("header of a raw record"), "-")},
		"Idempotency-Key":        {l.canary(planted{inTap: true}, slot("idempotency key of a raw record"), "-")},
		"X-Request-Id":           {"accept"},
		"Kafka-Header-class":     {"public"},
		"Kafka-Header-no-reason": {"yes"},
	})
	if err != nil {
		return fmt.Errorf("plant a raw record: %w", err)
	}
	_, err = l.w.eu.storeAll(ctx, []client.Write{{
		Topic: githubTopic, Key: l.canary(p, slot("key of a line"), odd), Idem: l.canary(planted{inTap: true}, slot("idempotency key of a line"), "-"),
		Value: fmt.Appendf(nil, `[%s]`, client.Quote(l.canary(p, slot("value of a line"), odd))),
	}})
	return err
}

// plantNative writes past the gateway, into a topic that no rule allows, by a client
// and for a group with names of their own.
func (l *leakTest) plantNative(ctx context.Context) error {
	const topic = "clicks"
	group := l.canary(planted{}, "name of a group", "-")
	c, err := kgo.NewClient(kgo.SeedBrokers(l.w.eu.seeds()...), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ClientID(l.canary(planted{}, "client id", "-")), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return fmt.Errorf("create %s: %w", topic, err)
	}
	p := planted{inFiles: true}
	rec := &kgo.Record{
		Topic: topic, Key: []byte(l.canary(p, "native key", odd)), Value: []byte(l.canary(p, "native value", odd)),
		Headers: []kgo.RecordHeader{{Key: l.canary(p, "native header name", "-"), Value: []byte(l.canary(p, "native header value", odd))}},
	}
	if err := c.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("produce to %s: %w", topic, err)
	}
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 1, -1)
	if _, err := adm.CommitOffsets(ctx, group, offsets); err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	return nil
}

// askEverything reads all that a region's listeners show, which their taps write
// down, and gives its metrics.
func (l *leakTest) askEverything(ctx context.Context, r *region) (metrics []byte, err error) {
	for _, topic := range []string{flightsTopic, githubTopic, catalogueTopic, ordersTopic, patientsTopic, privateTopic} {
		for _, view := range []string{"merged", "local", "origin:us", "origin:eu"} {
			if err := l.readAll(ctx, r, "/v1/topics/"+topic+"/records", url.Values{"view": {view}, "limit": {"500"}, "wait": {"1ms"}}); err != nil {
				return nil, err
			}
		}
		if err := l.readAll(ctx, r, "/v1/conflicts", url.Values{"topic": {topic}, "limit": {"500"}}); err != nil {
			return nil, err
		}
	}
	units, err := l.w.units(ctx, r)
	if err != nil {
		return nil, err
	}
	for name := range units {
		if err := l.look(ctx, r, "/v1/ownership/orphans?"+url.Values{"unit": {name}}.Encode()); err != nil {
			return nil, err
		}
	}
	for _, path := range []string{"/v1/status", "/v1/topics", "/configz", "/readyz", "/debug/pprof/goroutine?debug=2"} {
		if err := l.look(ctx, r, path); err != nil {
			return nil, err
		}
	}
	metrics, _, err = r.gateway.DoManagement(ctx, http.MethodGet, "/metrics", nil, nil)
	return metrics, err
}

// look asks a region's management listener and takes any answer.
func (l *leakTest) look(ctx context.Context, r *region, path string) error {
	_, _, err := r.gateway.DoManagement(ctx, http.MethodGet, path, nil, nil)
	var p *client.Problem
	if errors.As(err, &p) {
		return nil
	}
	return err
}

// readAll reads a list to its end; what cannot be read is an answer, too.
func (l *leakTest) readAll(ctx context.Context, r *region, path string, q url.Values) error {
	q.Set("from", "earliest")
	for {
		var page struct {
			Next string `json:"next"`
			End  bool   `json:"end"`
		}
		err := r.gateway.Get(ctx, path+"?"+q.Encode(), &page)
		var p *client.Problem
		if errors.As(err, &p) {
			return nil
		}
		if err != nil {
			return err
		}
		if page.End || page.Next == "" || page.Next == q.Get("from") {
			return nil
		}
		q.Set("from", page.Next)
	}
}

// sighting is where a canary was found first, for people.
type sighting struct{ where, form string }

// search is what one place of the world holds: by canary.
type search struct {
	name  string
	bytes int64
	files int
	found map[int]sighting
}

// searchFiles looks through files and directories.
func searchFiles(sc *scanner, name string, paths ...string) (*search, error) {
	s := &search{name: name, found: make(map[int]sighting)}
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			where, err := filepath.Rel(filepath.Dir(root), path)
			if err != nil {
				return err
			}
			return s.read(sc, where, f)
		})
		if err != nil {
			return nil, fmt.Errorf("search %s: %w", name, err)
		}
	}
	return s, nil
}

func searchBytes(sc *scanner, name string, bodies ...[]byte) (*search, error) {
	s := &search{name: name, found: make(map[int]sighting)}
	for _, b := range bodies {
		if err := s.read(sc, name, bytes.NewReader(b)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *search) read(sc *scanner, where string, r io.Reader) error {
	n, err := sc.scan(r, func(n needle, at int64) {
		if _, ok := s.found[n.canary]; !ok {
			s.found[n.canary] = sighting{fmt.Sprintf("%s at %d", where, at), n.form}
		}
	})
	s.bytes += n
	s.files++
	return err
}

// tapsOf gives the directories of taps whose names a filter picks.
func (w *threeSites) tapsOf(pick func(name string) bool) (dirs []string) {
	for _, t := range w.taps {
		if pick(t.name) {
			dirs = append(dirs, t.dir)
		}
	}
	return dirs
}

// territory is everything that the scan looks through, after the processes have
// ended.
type territory struct {
	euFiles, euTap                            *search
	link, register, usFiles, usHTTP, usSocket *search
	witness, logs, metrics                    *search
	// routes are the sockets between the register's servers, which are encrypted.
	routes *search
}

// outside are the places that are not eu's.
func (t *territory) outside() []*search {
	return []*search{t.link, t.register, t.usFiles, t.usHTTP, t.usSocket, t.witness, t.routes}
}

func (l *leakTest) survey(sc *scanner, metrics ...[]byte) (t territory, err error) {
	w := l.w
	is := func(names ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(names, n) }
	}
	starts := func(prefix string) func(string) bool {
		return func(n string) bool { return strings.HasPrefix(n, prefix) }
	}
	kafka := func(r *region) []string {
		if r.broker == nil {
			return []string{r.dir}
		}
		return []string{r.dir, filepath.Join(w.dir, "kafka-"+r.name)}
	}
	for _, x := range []struct {
		into  **search
		name  string
		paths []string
	}{
		{&t.euFiles, "eu's files", kafka(w.eu)},
		{&t.euTap, "eu's HTTP socket", w.tapsOf(is("http of eu"))},
		{&t.link, "the link from eu", w.tapsOf(is("kafka of us, from eu"))},
		{&t.register, "the register's files", []string{filepath.Join(w.us.dir, "nats"), filepath.Join(w.eu.dir, "nats"), filepath.Join(w.witnessDir(), "nats")}},
		{&t.routes, "the register's sockets", w.tapsOf(starts("register of "))},
		{&t.usFiles, "us's files", kafka(w.us)},
		{&t.usHTTP, "us's HTTP socket", w.tapsOf(is("http of us"))},
		{&t.usSocket, "us's other sockets", w.tapsOf(is("management of us", "kafka of us, from us", "kafka of eu, from us"))},
		{&t.witness, "the witness's files", []string{w.witnessDir()}},
		{&t.logs, "the logs of all processes", []string{w.us.log, w.eu.log, w.witnessLog()}},
	} {
		if *x.into, err = searchFiles(sc, x.name, x.paths...); err != nil {
			return t, err
		}
	}
	t.metrics, err = searchBytes(sc, "the metrics of both regions", metrics...)
	return t, err
}
