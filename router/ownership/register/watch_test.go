package register

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/router/ownership"
)

// fakeJetStream has one consumer. It is replaced on the server just when it is about
// to call back, so that the first message of the next one overtakes that call.
type fakeJetStream struct {
	jetstream.JetStream
	calls []*message
}

func (f *fakeJetStream) OrderedConsumer(context.Context, string, jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	return &fakeConsumer{calls: f.calls}, nil
}

type fakeConsumer struct {
	jetstream.Consumer
	calls []*message
}

func (f *fakeConsumer) CachedInfo() *jetstream.ConsumerInfo {
	return &jetstream.ConsumerInfo{Name: f.calls[0].consumer}
}

func (f *fakeConsumer) Consume(handle jetstream.MessageHandler, _ ...jetstream.PullConsumeOpt) (jetstream.ConsumeContext, error) {
	for _, m := range f.calls {
		handle(m)
	}
	return running{}, nil
}

// running is a consumer that does not end on its own.
type running struct{ jetstream.ConsumeContext }

func (running) Closed() <-chan struct{} { return nil }
func (running) Stop()                   {}

// message is one as the server-side consumer of a name delivers it.
type message struct {
	jetstream.Msg
	consumer string
	seq      uint64
}

func (m *message) Subject() string { return "own.unit.air/us" }
func (m *message) Data() []byte    { return nil }
func (m *message) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Consumer: m.consumer, Sequence: jetstream.SequencePair{Stream: m.seq}}, nil
}

// TestWatchIsNotOvertaken: a message that overtakes the one before is not delivered;
// the watch ends, and the next one begins where order ended.
func TestWatchIsNotOvertaken(t *testing.T) {
	r := &Register{js: &fakeJetStream{calls: []*message{{consumer: "a", seq: 8}, {consumer: "b", seq: 10}, {consumer: "a", seq: 9}, {consumer: "b", seq: 11}}}}
	var got []uint64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := r.Watch(ctx, 7, func(s ownership.Seen) {
		if got = append(got, s.Seq); s.Seq == 11 {
			cancel() // delivered to the end
		}
	})
	if !errors.Is(err, errOrder) || !slices.Equal(got, []uint64{8}) {
		t.Errorf("delivered %v, then: %v", got, err)
	}
}

// TestWatchPlace: what is delivered lacks nothing, whatever the consumer's replacements
// do to the order of calls.
func TestWatchPlace(t *testing.T) {
	type call struct {
		consumer string
		seq      uint64
	}
	for name, tt := range map[string]struct {
		calls []call
		taken int // of the calls, from the first on
	}{
		"one consumer":                       {[]call{{"a", 8}, {"a", 9}, {"a", 10}}, 3},
		"old revisions dropped at the start": {[]call{{"a", 30}, {"a", 31}}, 2},
		"and later":                          {[]call{{"a", 8}, {"a", 30}, {"a", 31}}, 3},
		"replaced":                           {[]call{{"a", 8}, {"b", 9}, {"b", 30}, {"c", 31}}, 4},
		"replaced before a message":          {[]call{{"b", 8}, {"b", 9}}, 2},
		"overtaken":                          {[]call{{"a", 8}, {"b", 10}, {"a", 9}, {"b", 11}}, 1},
		"the first message overtaken":        {[]call{{"b", 9}, {"a", 8}, {"b", 10}}, 0},
		"two overtaken":                      {[]call{{"a", 8}, {"c", 11}, {"b", 10}, {"a", 9}}, 1},
		"overtaken, then in order":           {[]call{{"a", 8}, {"b", 10}, {"a", 9}, {"b", 10}}, 1},
		"dropped while replaced":             {[]call{{"a", 8}, {"b", 30}}, 1},
		"twice":                              {[]call{{"a", 8}, {"a", 8}}, 1},
		"backwards":                          {[]call{{"a", 8}, {"b", 8}}, 1},
		"what the watch began after":         {[]call{{"a", 7}}, 0},
	} {
		place := watchPlace{consumer: "a", seq: 7}
		for i, c := range tt.calls {
			if err := place.move(c.consumer, c.seq); (err == nil) != (i < tt.taken) || err != nil && !errors.Is(err, errOrder) {
				t.Errorf("%s: call %d: %v", name, i, err)
			}
		}
	}
}
