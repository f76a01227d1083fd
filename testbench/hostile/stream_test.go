//go:build unix

package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// streamLines is how many lines the streams of these tests have, all of one record key.
const streamLines = 300

// streamBody is a stream of lines of one record key; each value is its line's number.
func streamBody() []byte {
	var b bytes.Buffer
	for i := range streamLines {
		fmt.Fprintf(&b, `{"key":{"type":"string","data":"k"},"value":{"type":"json","data":%d}}`+"\n", i)
	}
	return b.Bytes()
}

// sendStream sends a stream under a key, as the guide says to resend one: whole. It is an
// error if any line was not answered as stored.
func (r *region) sendStream(ctx context.Context, topic, key string) error {
	header := http.Header{"Content-Type": {"application/x-ndjson"}, "Idempotency-Key": {key}}
	raw, _, err := r.Do(ctx, http.MethodPost, "/v1/topics/"+topic+"/records", streamBody(), header)
	if err != nil {
		return err
	}
	if stored := bytes.Count(raw, []byte(`"ack":"local"`)); stored != streamLines {
		return fmt.Errorf("%d of %d lines are stored, answers end with %.300s", stored, streamLines, raw[max(0, len(raw)-300):])
	}
	return nil
}

// abortStream sends the begin of a stream and resets the connection after some answers.
func (r *region) abortStream(topic, key string, lines, answers int) error {
	c, err := net.Dial("tcp", r.data)
	if err != nil {
		return err
	}
	defer c.Close()
	body := streamBody()
	for range streamLines - lines {
		body = body[:bytes.LastIndexByte(body[:len(body)-1], '\n')+1]
	}
	head := fmt.Sprintf("POST /v1/topics/%s/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nIdempotency-Key: %s\r\nContent-Length: 1000000\r\n\r\n", topic, key)
	if _, err := io.WriteString(c, head+string(body)); err != nil {
		return err
	}
	for got := 0; got < answers; {
		buf := make([]byte, 4096)
		n, err := c.Read(buf)
		got += bytes.Count(buf[:n], []byte("\n{"))
		if err != nil {
			return err
		}
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return errors.New("no TCP")
	}
	return tcp.SetLinger(0) // what was not read is answered by a reset
}

// values are the values of the key in the region's own log, in its order, without those of
// lines that are in it already.
func (r *region) values(t *testing.T, topic string) []string {
	t.Helper()
	var out []string
	for from := "earliest"; ; {
		var page struct {
			Records []struct {
				Value struct{ Data json.RawMessage }
			}
			Next string
			End  bool
		}
		r.await(t, "a page of the log", func(ctx context.Context) error {
			return r.Get(ctx, "/v1/topics/"+topic+"/records?view=local&limit=1000&from="+from, &page)
		})
		for _, rec := range page.Records {
			out = append(out, string(rec.Value.Data))
		}
		if from = page.Next; page.End {
			return out
		}
	}
}

// inOrder fails unless the log has each line once, in the order of the stream.
func inOrder(t *testing.T, what string, got []string) {
	t.Helper()
	var want []string
	for i := range streamLines {
		want = append(want, fmt.Sprint(i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d records, not the %d lines in their order: %s", what, len(got), len(want), strings.Join(got, " "))
	}
}

// TestStreamOrder: a stream that is aborted, or sent to a topic that nobody has written to
// yet, and then sent again whole until every line is answered as stored, leaves its lines in
// the log in their order, the last one last.
func TestStreamOrder(t *testing.T) {
	d := deploy(t, spec{})
	const cold, reset = 3, 5
	adm := kadm.NewClient(d.us.kafka(t))
	var names []string
	for i := range cold + reset {
		names = append(names, fmt.Sprintf("stream-%d", i))
	}
	made, err := adm.CreateTopics(t.Context(), 4, 1, nil, names...)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		d.us.await(t, "topic "+name, func(ctx context.Context) error {
			return d.us.Get(ctx, "/v1/topics/"+name+"/ownership", &struct{}{})
		})
	}
	n := settle(t, d.us) // so that the resets come under load
	for i, name := range names {
		if i >= cold {
			for try := range 2 {
				if err := d.us.abortStream(name, name, 100*(try+1), 20*try); err != nil {
					t.Logf("%s: abort: %v", name, err)
				}
			}
		}
		tries := 0
		d.us.await(t, "all lines of "+name, func(ctx context.Context) error {
			tries++
			return d.us.sendStream(ctx, name, name)
		})
		t.Logf("%s: stored after %d tries", name, tries)
		inOrder(t, name, d.us.values(t, name))
	}
	n.leave(t)
}
