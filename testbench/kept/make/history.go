//go:build unix

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/kept"
)

// The topics of the history. scratch is not declared: native tools make it.
const (
	flights, notes, github, prices, orders, spare = "flights", "notes", "github", "prices", "orders", "spare"
	payroll, scratch                              = "payroll", "scratch"
)

// history is what happens to a deployment.
type history struct {
	*deployment
	held kept.Held
}

// run goes through the history, and ends with us stopped and eu and the witness
// killed.
func (h *history) run(ctx context.Context) error {
	for _, chapter := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"writes", h.writes},
		{"native producers", h.native},
		{"concurrent writes and twins", h.concurrent},
		{"a topic made again", h.incarnation},
		{"retention without end", h.retain},
		{"a fence of a living region", h.fenceLiving},
		{"a fence of a lost region, and orphans", h.fenceLost},
		{"what clients hold", h.clients},
		{"the end", h.end},
	} {
		h.note("# %s", chapter.name)
		if err := chapter.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", chapter.name, err)
		}
	}
	return nil
}

// body is the document of a write. A value of "" is a tombstone.
func body(key, value string, headers ...[2]string) string {
	type typed struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	doc := map[string]any{"value": nil}
	if key != "" {
		doc["key"] = map[string]string{"type": "string", "data": key}
	}
	if value != "" {
		doc["value"] = typed{"json", json.RawMessage(value)}
	}
	list := []map[string]any{}
	for _, kv := range headers {
		list = append(list, map[string]any{"name": kv[0], "value": base64.StdEncoding.EncodeToString([]byte(kv[1]))})
	}
	if len(list) > 0 {
		doc["headers"] = list
	}
	raw, _ := json.Marshal(doc) // strings and valid JSON
	return string(raw)
}

// store writes, and holds the answer if the write has an idempotency key.
func (h *history) store(ctx context.Context, region, topic, idem string, doc string) error {
	w := kept.Write{Topic: topic, Idem: idem, Body: doc}
	reply, err := h.region(region).Store(ctx, w)
	if err == nil && idem != "" {
		h.held.Answers = append(h.held.Answers, kept.HeldAnswer{Region: region, Write: w, Answer: reply.Body})
	}
	return err
}

// forget drops held answers: what they name was fenced or is gone.
func (h *history) forget(idem ...string) {
	h.held.Answers = slices.DeleteFunc(h.held.Answers, func(a kept.HeldAnswer) bool { return slices.Contains(idem, a.Idem) })
}

func (h *history) writes(ctx context.Context) error {
	var errs []error
	put := func(region, topic, idem string, doc string) {
		errs = append(errs, h.store(ctx, region, topic, idem, doc))
	}
	for i, airport := range []string{"DTW", "ATL", "ORD", "ZRH", "LHR"} {
		put("us", flights, "us-flight-"+airport, body(airport, fmt.Sprintf(`{"delay":%d,"big":9007199254740993}`, i)))
		put("eu", flights, "", body(airport+"-eu", fmt.Sprintf(`{"delay": %d}`, -i), [2]string{"src", "hi"}, [2]string{"src", ""}))
	}
	put("us", flights, "", body("ATL", ""))
	put("us", flights, "", body("ORD", `{"delay":77}`))
	for _, repo := range []string{"octo-org/octo-repo", "octocat/hello-world", "eu-corp/payroll", ""} {
		put("us", github, "us-hook-"+repo, body(repo, `{"event":"push","repo":"`+repo+`"}`))
		put("eu", github, "eu-hook-"+repo, body(repo, `{"event":"star","repo":"`+repo+`"}`))
	}
	put("eu", prices, "price-1", body("widget", `1`))
	put("eu", prices, "", body("widget", `2`))
	put("us", orders, "order-us", body("o-1", `{"n":1}`, [2]string{"home", "us"}))
	put("eu", orders, "order-eu", body("o-2", `{"n":2}`, [2]string{"home", "eu"}))
	put("us", spare, "spare-us", body("", `"first"`))
	put("eu", spare, "spare-eu", body("", `"first"`))
	put("eu", payroll, "pay-1", body("alice", `{"salary":1}`))
	put("us", payroll, "pay-2", body("bob", `{"salary":2}`))
	put("us", notes, "note-1", body("n", `"first"`))
	binary := `{"key":{"type":"binary","data":"AP8="},"value":{"type":"binary","data":"gAE="}}`
	text := `{"key":{"type":"string","data":"text"},"value":{"type":"string","data":"not {json"}}`
	put("us", flights, "", binary)
	put("us", flights, "", text)
	return errors.Join(append(errs, h.settle(ctx))...)
}

// native writes what no gateway has stamped: batches of every compression,
// transactions that commit and abort.
func (h *history) native(ctx context.Context) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		c, err := kgo.NewClient(kgo.SeedBrokers(h.region("us").Seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec))
		if err != nil {
			return err
		}
		err = c.ProduceSync(ctx, nativeRecords(name)...).FirstErr()
		c.Close()
		if err != nil {
			return err
		}
	}
	if err := h.members["eu"].client.ProduceSync(ctx, nativeRecords("eu")...).FirstErr(); err != nil {
		return err
	}
	for _, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		c, err := h.transaction(ctx, "eu", fmt.Sprintf("native-%t", bool(commit)))
		if err != nil {
			return err
		}
		err = c.EndTransaction(ctx, commit)
		c.Close()
		if err != nil {
			return err
		}
	}
	return h.settle(ctx)
}

func nativeRecords(name string) (all []*kgo.Record) {
	for i, key := range []string{"octo-org/octo-repo", "octocat/hello-world", "native-" + name, ""} {
		rec := &kgo.Record{
			Topic: github, Partition: int32(i % 2), Value: []byte(`{"event":"native ` + name + `"}`),
			Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: "", Value: []byte{}}},
		}
		if key != "" {
			rec.Key = []byte(key)
		}
		all = append(all, rec)
	}
	return all
}

// transaction begins a native transaction in a region, and writes in it.
func (h *history) transaction(ctx context.Context, region, id string) (*kgo.Client, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(h.region(region).Seeds...), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	if err := c.BeginTransaction(); err != nil {
		return nil, err
	}
	return c, c.ProduceSync(ctx, nativeRecords(id)...).FirstErr()
}

// concurrent writes the same entities, and with the same keys, in both regions while
// neither hears of the other.
func (h *history) concurrent(ctx context.Context) error {
	h.cut("us")
	h.cut("eu")
	var errs []error
	for _, region := range []string{"us", "eu"} {
		put := func(topic, idem string, doc string) {
			errs = append(errs, h.store(ctx, region, topic, idem, doc))
		}
		value := func(n int) string { return fmt.Sprintf(`{"by":"%s","n":%d}`, region, n) }
		put(flights, "", body("ZRH", value(1)))
		put(flights, "", body("both", value(1)))
		put(flights, "", body("both", value(2)))
		put(notes, "", body("n", value(1)))
		put(notes, "", body("n", value(2)))
		put(notes, "", body("m", value(1)))
		put(flights, "twin-flight", body("twin", `{"n":1}`))
		put(github, "twin-event", body("octocat/hello-world", `{"event":"twin"}`))
		put(notes, "twin-note", body("twin", `1`))
	}
	errs = append(errs, h.store(ctx, "us", flights, "", body("LHR", "")), h.store(ctx, "eu", flights, "", body("LHR", `{"from":"eu"}`)))
	if err := errors.Join(append(errs, h.heal("us"), h.heal("eu"), h.settle(ctx))...); err != nil {
		return err
	}
	// One of the conflicts under keep is resolved by a write that has seen both.
	return errors.Join(h.store(ctx, "eu", notes, "", body("m", `"resolved"`)), h.settle(ctx))
}

// incarnation deletes a topic that both regions have and makes it again in us.
func (h *history) incarnation(ctx context.Context) error {
	for _, name := range []string{"us", "eu"} {
		if _, err := kadm.NewClient(h.members[name].client).CreateTopic(ctx, 1, 1, nil, scratch); err != nil {
			return err
		}
		if err := h.known(ctx, name, "", `"first"`); err != nil {
			return err
		}
	}
	if err := h.settle(ctx); err != nil {
		return err
	}
	admin := kadm.NewClient(h.members["us"].client)
	if _, err := admin.DeleteTopic(ctx, scratch); err != nil {
		return err
	}
	us := h.region("us")
	if err := kept.Poll(ctx, func() error {
		_, err := us.Send(ctx, kept.Write{Topic: scratch, Body: body("k", `"second"`)})
		if client.Code(err) != "TOPIC_UNKNOWN" {
			return fmt.Errorf("the topic is still known: %w", err)
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, scratch); err != nil {
		return err
	}
	return errors.Join(h.known(ctx, "us", "scratch-again", `"again"`), h.settle(ctx))
}

// known writes to a topic that was just made, until the region knows it.
func (h *history) known(ctx context.Context, region, idem, value string) error {
	return kept.Poll(ctx, func() error { return h.store(ctx, region, scratch, idem, body("k", value)) })
}

// retain has every topic keep its records for ever, so that later tests may set a
// window of idempotency that has not passed by then: it must not exceed retention.
func (h *history) retain(ctx context.Context) error {
	for _, name := range []string{"us", "eu"} {
		admin := kadm.NewClient(h.members[name].client)
		topics, err := admin.ListTopics(ctx)
		if err != nil {
			return err
		}
		changed, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("-1")}}, topics.Names()...)
		if err != nil {
			return err
		}
		for _, c := range changed {
			if c.Err != nil {
				return fmt.Errorf("set retention of %s in %s: %w", c.Name, name, c.Err)
			}
		}
	}
	return nil
}

// fenceLiving fences eu, which lives and drains, and lets it write again.
func (h *history) fenceLiving(ctx context.Context) error {
	us := h.region("us")
	if err := us.Command(ctx, "fence", map[string]string{"region": "eu", "reason": "maintenance"}); err != nil {
		return err
	}
	if _, err := h.region("eu").Send(ctx, kept.Write{Topic: flights, Body: body("DTW", `{"fenced":true}`)}); client.Code(err) != "NOT_OWNER" {
		return fmt.Errorf("a write in the fenced region was not refused as it should: %w", err)
	}
	if err := us.Command(ctx, "unfence", map[string]string{"region": "eu"}); err != nil {
		return err
	}
	return errors.Join(h.store(ctx, "eu", flights, "second-epoch", body("DTW", `{"epoch":2}`)), h.settle(ctx))
}

// fenceLost kills eu when it has answered writes that us has not got, and fences it.
// Back and unfenced, eu has orphans.
func (h *history) fenceLost(ctx context.Context) error {
	h.cut("us")
	errs := []error{
		h.store(ctx, "eu", flights, "orphan-flight", body("DTW", `{"orphan":true}`)),
		h.store(ctx, "eu", flights, "", body("only-orphan", `1`)),
		h.store(ctx, "eu", notes, "", body("n", `"orphan"`)),
		h.store(ctx, "eu", github, "orphan-event", body("octocat/hello-world", `{"event":"orphan"}`)),
		h.store(ctx, "eu", prices, "", body("widget", `666`)),
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.forget("orphan-flight", "orphan-event")
	if _, err := h.transaction(ctx, "eu", "native-open-1"); err != nil {
		return err
	}
	h.kill("eu")
	us := h.region("us")
	h.note("fence eu, which takes until no lease of it can hold")
	if err := us.Command(ctx, "fence", map[string]string{"region": "eu", "reason": "lost"}); err != nil {
		return err
	}
	if err := h.heal("us"); err != nil {
		return err
	}
	if err := h.start(ctx, "eu"); err != nil {
		return err
	}
	if err := us.Command(ctx, "unfence", map[string]string{"region": "eu"}); err != nil {
		return err
	}
	return errors.Join(
		h.store(ctx, "eu", flights, "orphan-flight", body("DTW", `{"orphan":true}`)), // its key is free
		h.store(ctx, "eu", flights, "third-epoch", body("ATL", `{"epoch":3}`)),
		h.store(ctx, "eu", github, "third-epoch", body("octo-org/octo-repo", `{"epoch":3}`)),
		h.store(ctx, "eu", notes, "", body("n", `"again"`)),
		h.store(ctx, "eu", prices, "", body("widget", `3`)),
		h.settle(ctx))
}

// clients takes cursors from the middle of the merged views.
func (h *history) clients(ctx context.Context) error {
	if _, err := stable(ctx, h.all()); err != nil {
		return err
	}
	for _, r := range h.all() {
		for _, topic := range []string{flights, notes, github} {
			_, cursor, err := r.Dots(ctx, topic, "earliest", 4)
			if err != nil {
				return err
			}
			rest, _, err := r.Dots(ctx, topic, cursor, 0)
			if err != nil {
				return err
			}
			h.held.Cursors = append(h.held.Cursors, kept.HeldCursor{Region: r.Name, Topic: topic, Cursor: cursor, Rest: rest})
		}
	}
	return nil
}

// end leaves a unit fenced, records that no link has carried, an open transaction,
// and no process.
func (h *history) end(ctx context.Context) error {
	if err := h.region("us").Command(ctx, "fence", map[string]string{"unit": kept.FencedUnit, "reason": "left so"}); err != nil {
		return err
	}
	h.forget("spare-eu")
	if err := h.settle(ctx); err != nil {
		return err
	}
	h.cut("eu")
	h.cut("us")
	for _, region := range []string{"us", "eu"} {
		err := errors.Join(
			h.store(ctx, region, flights, "uncopied-"+region, body("uncopied", `{"by":"`+region+`"}`)),
			h.store(ctx, region, github, "uncopied-"+region, body("octocat/hello-world", `{"event":"uncopied"}`)))
		if err != nil {
			return err
		}
	}
	if err := h.stop("us"); err != nil {
		return err
	}
	if _, err := h.transaction(ctx, "eu", "native-open-2"); err != nil {
		return err
	}
	h.kill("eu")
	return h.stop("witness")
}
