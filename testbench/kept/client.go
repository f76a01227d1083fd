package kept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// pollEvery is the distance between two questions about what must come about.
const pollEvery = 50 * time.Millisecond

// Region is a running region as its clients and operators reach it.
type Region struct {
	client.Client
	Name  string
	Seeds []string // of its Kafka
}

// Write is a request to store a record: Body is the document of POST
// /v1/topics/{topic}/records, a string, so that its bytes stay as they were sent.
type Write struct {
	Topic string `json:"topic"`
	Idem  string `json:"idempotency_key,omitempty"`
	Body  string `json:"body"`
}

// Answer is how a write was answered.
type Answer struct {
	Body     string
	Replayed bool // the header Idempotent-Replayed
}

// Send sends a write once. A refusal is a *client.Problem.
func (r *Region) Send(ctx context.Context, w Write) (Answer, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if w.Idem != "" {
		h.Set("Idempotency-Key", w.Idem)
	}
	raw, got, err := r.Do(ctx, http.MethodPost, "/v1/topics/"+url.PathEscape(w.Topic)+"/records", []byte(w.Body), h)
	if err != nil {
		return Answer{}, fmt.Errorf("write to %s in %s: %w", w.Topic, r.Name, err)
	}
	return Answer{Body: string(raw), Replayed: got.Get("Idempotent-Replayed") == "true"}, nil
}

// Store sends a write until it is stored, refused for good, or ctx ends. One whose
// outcome is unknown is sent again only if it has a key.
func (r *Region) Store(ctx context.Context, w Write) (a Answer, err error) {
	polled := Poll(ctx, func() error {
		a, err = r.Send(ctx, w)
		if err != nil && client.MayRetry(err) && (w.Idem != "" || client.Code(err) != "") {
			return err
		}
		return nil
	})
	return a, errors.Join(polled, err)
}

// exitOrphans is the exit code of a fence that may have left orphans.
const exitOrphans = 10

// Command posts a fence or an unfence and waits for its end.
func (r *Region) Command(ctx context.Context, verb string, arguments map[string]string) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return fmt.Errorf("encode %v: %w", arguments, err)
	}
	raw, _, err := r.DoManagement(ctx, http.MethodPost, "/v1/"+verb, body, http.Header{"Content-Type": {"application/json"}})
	var result struct {
		Exit int `json:"exit"`
	}
	if err == nil {
		err = client.Decode(raw, &result)
	}
	if err == nil && result.Exit != 0 && result.Exit != exitOrphans {
		err = fmt.Errorf("exit code %d: %s", result.Exit, raw)
	}
	if err != nil {
		return fmt.Errorf("%s %v in %s: %w", verb, arguments, r.Name, err)
	}
	return nil
}

// Committed reads the committed records of a topic of the region's Kafka.
func (r *Region) Committed(ctx context.Context, topic string) ([]*kgo.Record, error) {
	all, err := client.ReadTopic(ctx, r.Seeds, topic, true)
	return client.Data(all), err
}

// Poll asks until there is no error, or returns the last one when ctx ends.
func Poll(ctx context.Context, ask func() error) error { return client.Poll(ctx, pollEvery, ask) }
