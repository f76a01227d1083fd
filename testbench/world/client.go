package world

import (
	"context"
	"errors"
	"net/http"

	"github.com/geogate/geogate/testbench/client"
)

// errAway says that the instance does not run.
var errAway = errors.New("instance does not run")

// Client talks to the instance, also after it was started again elsewhere.
func (in *Instance) Client() client.Client {
	return client.Client{HTTP: in.region.w.http, Retry: pollEvery, Address: func() (client.Address, error) {
		n := in.node.Load()
		if n == nil {
			return client.Address{}, errAway
		}
		return client.Address{Data: "http://" + n.DataAddr(), Management: "http://" + n.ManagementAddr()}, nil
	}}
}

// Do sends one request to the instance's data listener.
func (in *Instance) Do(ctx context.Context, method, path string, body []byte, header http.Header) ([]byte, http.Header, error) {
	return in.Client().Do(ctx, method, path, body, header)
}

// Manage asks the instance's management listener.
func (in *Instance) Manage(ctx context.Context, path string, into any) error {
	return in.Client().Manage(ctx, path, into)
}

// Try sends a write once. It may be called from any goroutine.
func (in *Instance) Try(ctx context.Context, wr client.Write) (client.Answer, error) {
	return in.Client().Try(ctx, wr)
}

// Store sends a write until it is answered or ctx ends. It may be called from any
// goroutine.
func (in *Instance) Store(ctx context.Context, wr client.Write) (client.Answer, error) {
	return in.Client().Store(ctx, wr)
}

// Client talks to the region's newest instance.
func (r *Region) Client() client.Client { return r.last().Client() }

// Try is [Instance.Try] of the region's newest instance.
func (r *Region) Try(ctx context.Context, wr client.Write) (client.Answer, error) {
	return r.last().Try(ctx, wr)
}

// Store is [Instance.Store] of the region's newest instance.
func (r *Region) Store(ctx context.Context, wr client.Write) (client.Answer, error) {
	return r.last().Store(ctx, wr)
}

// Option changes a write or a read.
type Option func(*client.Write)

// Idem gives the write an idempotency key.
func Idem(key string) Option { return func(w *client.Write) { w.Idem = key } }

// Token makes the request carry a token.
func Token(token string) Option { return func(w *client.Write) { w.Token = token } }

// Header gives the record a header.
func Header(name, value string) Option {
	return func(w *client.Write) { w.Headers = append(w.Headers, client.Header{Name: name, Value: value}) }
}

// NoKey leaves the record key out.
func NoKey() Option { return func(w *client.Write) { w.NoKey = true } }

// Put stores a value under a key, or fails the test. A partition that is not
// ready yet is waited for.
func (r *Region) Put(topic, key, value string, opts ...Option) client.Answer {
	r.w.t.Helper()
	return r.put(client.Write{Topic: topic, Key: key, Value: []byte(value)}, opts)
}

// Delete stores a tombstone, or fails the test.
func (r *Region) Delete(topic, key string, opts ...Option) client.Answer {
	r.w.t.Helper()
	return r.put(client.Write{Topic: topic, Key: key}, opts)
}

func (r *Region) put(wr client.Write, opts []Option) client.Answer {
	r.w.t.Helper()
	for _, o := range opts {
		o(&wr)
	}
	ctx, cancel := r.w.context()
	defer cancel()
	a, err := r.Store(ctx, wr)
	if err != nil {
		r.w.t.Fatalf("write to %s in %s: %v", wr.Topic, r.Name, err)
	}
	return a
}

// Entity reads an entity; with a token, once the region has applied it. A deleted
// or unknown one is a *client.Problem ENTITY_UNKNOWN.
func (r *Region) Entity(topic, key string, opts ...Option) (client.Entity, error) {
	var wr client.Write
	for _, o := range opts {
		o(&wr)
	}
	ctx, cancel := r.w.context()
	defer cancel()
	return r.Client().Entity(ctx, topic, key, wr.Token, "20s")
}

// Page reads one page of a view: merged, local or origin:<region>.
func (r *Region) Page(ctx context.Context, topic, view, from string, limit int) (client.Page, error) {
	return r.Client().Page(ctx, topic, view, from, limit)
}

// Records reads a whole view as it stands now, page by page.
func (r *Region) Records(topic, view string) ([]client.Record, error) {
	ctx, cancel := r.w.context()
	defer cancel()
	return r.Client().Records(ctx, topic, view)
}

// Conflicts reads the region's whole feed of a topic.
func (r *Region) Conflicts(topic string) ([]client.Conflict, error) {
	ctx, cancel := r.w.context()
	defer cancel()
	return r.Client().Conflicts(ctx, topic)
}

// Orphans lists the orphans of a unit that the region has met.
func (r *Region) Orphans(unit string) ([]client.Orphan, error) {
	ctx, cancel := r.w.context()
	defer cancel()
	return r.Client().Orphans(ctx, unit)
}

// AwaitReady waits until the region's newest instance says that it can serve.
func (r *Region) AwaitReady() {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	if err := client.Poll(ctx, pollEvery, func() error { return r.Client().Ready(ctx) }); err != nil {
		r.w.t.Fatalf("%s is not ready: %v", r.Name, err)
	}
}
