package embed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// writeBatch writes n records to a partition in one batch.
func writeBatch(t *testing.T, seed string, partition int32, n int) {
	t.Helper()
	var rs []*kgo.Record
	for i := range n {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Append(nil, i)})
	}
	if err := client(t, seed).ProduceSync(testContext(t), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// deleteRecords deletes the records of one partition below an offset, and returns the start
// of its log.
func deleteRecords(t *testing.T, seed string, partition int32, below int64) (start int64, err error) {
	t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 5000
	req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: partition, Offset: below}}}}
	resp, err := client(t, seed).Broker(0).Request(testContext(t), req)
	if err != nil {
		return 0, err
	}
	p := resp.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
	return p.LowWatermark, kerr.ErrorForCode(p.ErrorCode)
}

func mustDelete(t *testing.T, seed string, partition int32, below, want int64) {
	t.Helper()
	if start, err := deleteRecords(t, seed, partition, below); err != nil || start != want {
		t.Fatalf("delete records of partition %d below %d: starts at %d, %v; want %d", partition, below, start, err, want)
	}
}

// extents are start, end and the first offset that a reader gets of each partition, which is
// the end where there is nothing.
func extents(t *testing.T, seed string, partitions int32) string {
	t.Helper()
	ctx := testContext(t)
	cl := client(t, seed)
	adm := kadm.NewClient(cl)
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for n := range partitions {
		s, _ := starts.Lookup(topic, n)
		e, _ := ends.Lookup(topic, n)
		first := e.Offset
		if s.Offset < e.Offset {
			first = firstRead(ctx, t, seed, n)
		}
		all = append(all, fmt.Sprintf("%d-%d@%d", s.Offset, e.Offset, first))
	}
	return strings.Join(all, " ")
}

func firstRead(ctx context.Context, t *testing.T, seed string, partition int32) int64 {
	t.Helper()
	cl := client(t, seed, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	for {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		for r := range fs.RecordsAll() {
			return r.Offset
		}
	}
}

func wantExtents(t *testing.T, seed, when, want string) {
	t.Helper()
	if got := extents(t, seed, int32(len(strings.Fields(want)))); got != want {
		t.Fatalf("%s: logs are %s, want %s", when, got, want)
	}
}

// TestDeletedRecordsStayDeleted: what DeleteRecords has deleted does not come back, and no
// offset is assigned twice, after kills and after clean stops.
func TestDeletedRecordsStayDeleted(t *testing.T) {
	dir := t.TempDir()
	seed, kill := child(t, dir)
	createTopic(t, seed, topic, 4)
	for n := range int32(3) {
		writeBatch(t, seed, n, 10)
		writeBatch(t, seed, n, 10)
	}
	mustDelete(t, seed, 0, -1, 20) // all
	mustDelete(t, seed, 1, 13, 13) // up to the middle of a batch
	mustDelete(t, seed, 2, 20, 20) // all, and something new
	writeBatch(t, seed, 2, 5)
	mustDelete(t, seed, 3, -1, 0) // of nothing
	for _, wrong := range []int64{21, 5, -2} {
		if _, err := deleteRecords(t, seed, 1, wrong); !errors.Is(err, kerr.OffsetOutOfRange) {
			t.Fatalf("delete records below %d of those from 13 to 20: %v", wrong, err)
		}
	}
	want := "20-20@20 13-20@13 20-25@20 0-0@0"
	wantExtents(t, seed, "at first", want)
	for range 2 {
		kill()
		seed, kill = child(t, dir)
		wantExtents(t, seed, "after a kill", want)
	}
	kill()
	for range 2 {
		s := start(t, dir)
		wantExtents(t, s.Seeds()[0], "after a clean stop", want)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	seed, kill = child(t, dir)
	writeBatch(t, seed, 0, 1)
	mustDelete(t, seed, 1, 17, 17)
	want = "20-21@20 17-20@17 20-25@20 0-0@0"
	kill()
	wantExtents(t, start(t, dir).Seeds()[0], "after more of it", want)
}

// TestAnotherTopicStartsAtItsOwnStart: a topic that was created again under a name has
// nothing to do with the records that were deleted of the one before.
func TestAnotherTopicStartsAtItsOwnStart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	seed := s.Seeds()[0]
	createTopic(t, seed, topic, 2)
	writeBatch(t, seed, 0, 10)
	writeBatch(t, seed, 1, 10)
	mustDelete(t, seed, 0, -1, 10)
	mustDelete(t, seed, 1, 4, 4)
	old := map[int32][]byte{}
	for n := range int32(2) {
		raw, err := os.ReadFile(partitionFile(dir, n, "start.json"))
		if err != nil {
			t.Fatal(err)
		}
		old[n] = raw
	}
	if _, err := kadm.NewClient(client(t, seed)).DeleteTopic(testContext(t), topic); err != nil {
		t.Fatal(err)
	}
	createTopic(t, seed, topic, 2)
	writeBatch(t, seed, 1, 10)
	wantExtents(t, seed, "created again", "0-0@0 0-10@0")
	// The broker removes the directories with a topic, but goes on where it cannot.
	dir = killed(t, dir)
	for n, raw := range old {
		if err := os.MkdirAll(filepath.Dir(partitionFile(dir, n, "x")), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, partitionFile(dir, n, "start.json"), raw)
	}
	s = start(t, dir)
	wantExtents(t, s.Seeds()[0], "after a kill", "0-0@0 0-10@0")
	mustDelete(t, s.Seeds()[0], 1, 3, 3)
	wantExtents(t, start(t, killed(t, dir)).Seeds()[0], "after a deletion and a kill", "0-0@0 3-10@3")
}

// TestDeletionCutShort: a kill at any point of a deletion leaves it undone or done, and the
// end where it was.
func TestDeletionCutShort(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	seed := s.Seeds()[0]
	createTopic(t, seed, topic, 3)
	for n := range int32(3) {
		writeBatch(t, seed, n, 10)
	}
	before := killed(t, dir)
	for n := range int32(3) {
		mustDelete(t, seed, n, -1, 10)
		if _, err := os.Stat(partitionFile(dir, n, "start.json")); err != nil {
			t.Fatal(err)
		}
	}
	// Noted, and nothing of it done; or only some of its files gone.
	for n := range int32(3) {
		raw, err := os.ReadFile(partitionFile(dir, n, "start.json"))
		if err != nil {
			t.Fatal(err)
		}
		put(t, partitionFile(before, n, "start.json"), raw)
	}
	if err := errors.Join(os.Remove(partitionFile(before, 1, "0.dat")), os.Remove(partitionFile(before, 2, "0.idx"))); err != nil {
		t.Fatal(err)
	}
	wantExtents(t, start(t, before).Seeds()[0], "killed within the deletion", "10-10@10 10-10@10 10-10@10")
	// The first write after it is torn.
	writeBatch(t, seed, 0, 10)
	torn := killed(t, dir)
	shorten(t, partitionFile(torn, 0, "10.dat"), 3)
	wantExtents(t, start(t, torn).Seeds()[0], "killed within the next write", "10-10@10 10-10@10 10-10@10")
	// The log lost what lies beyond its start, as without power.
	lost := killed(t, dir)
	put(t, partitionFile(lost, 0, "start.json"), []byte(strings.Replace(string(mustRead(t, partitionFile(lost, 0, "start.json"))), `"start":10`, `"start":25`, 1)))
	wantExtents(t, start(t, lost).Seeds()[0], "with an end below the start", "25-25@25 10-10@10 10-10@10")
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestDeletionThatCannotBeNoted: records are deleted only where that is known after a kill.
func TestDeletionThatCannotBeNoted(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	seed := s.Seeds()[0]
	createTopic(t, seed, topic, 1)
	writeBatch(t, seed, 0, 10)
	obstacle := partitionFile(dir, 0, "start.json.tmp")
	if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if at, err := deleteRecords(t, seed, 0, 5); err == nil {
		t.Errorf("records are deleted below %d", at)
	}
	wantExtents(t, seed, "not noted", "0-10@0")
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	mustDelete(t, seed, 0, 5, 5)
}

// TestCleaningKeepsStarts: a start of a log in the middle outlives compaction and retention,
// also where a kill came before them.
func TestCleaningKeepsStarts(t *testing.T) {
	for _, configs := range []map[string]*string{
		{"cleanup.policy": text("compact"), "segment.ms": text("1"), "segment.bytes": text("300")},
		{"retention.bytes": text("1"), "segment.bytes": text("300")},
	} {
		dir := t.TempDir()
		s := start(t, dir)
		seed := s.Seeds()[0]
		if _, err := kadm.NewClient(client(t, seed)).CreateTopic(testContext(t), 2, 1, configs, topic); err != nil {
			t.Fatal(err)
		}
		cl := client(t, seed)
		for i := range 40 {
			for n := range int32(2) {
				r := &kgo.Record{Topic: topic, Partition: n, Key: []byte("k"), Value: slices.Repeat([]byte{byte(i)}, 4000)}
				if err := cl.ProduceSync(testContext(t), r, r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustDelete(t, seed, 0, 79, 79) // the middle of the last batch
		mustDelete(t, seed, 1, -1, 80)
		want := "79-80@79 80-80@80"
		wantExtents(t, start(t, killed(t, dir)).Seeds()[0], "cleaned after a kill", want)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s = start(t, dir)
			wantExtents(t, s.Seeds()[0], "cleaned after a stop", want)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestManyDeletionsInOneRequest: each partition of a request is noted, in every version of it.
func TestManyDeletionsInOneRequest(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	seed := s.Seeds()[0]
	createTopic(t, seed, topic, 3)
	for n := range int32(3) {
		writeBatch(t, seed, n, 10)
	}
	for version := range kmsg.NewPtrDeleteRecordsRequest().MaxVersion() + 1 {
		at := int64(version) + 1
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.TimeoutMillis = 5000
		rt := kmsg.DeleteRecordsRequestTopic{Topic: topic}
		for n := range int32(3) {
			rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: n, Offset: at})
		}
		rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: 7, Offset: -1})
		req.Topics = []kmsg.DeleteRecordsRequestTopic{rt, {Topic: "no such topic", Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}}}
		if _, err := client(t, seed).Broker(0).Request(testContext(t), deleteVersion{req, version}); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%[1]d-10@%[1]d %[1]d-10@%[1]d %[1]d-10@%[1]d", at)
		wantExtents(t, seed, fmt.Sprint("version ", version), want)
		wantExtents(t, start(t, killed(t, dir)).Seeds()[0], fmt.Sprint("version ", version, " after a kill"), want)
	}
}

type deleteVersion struct {
	*kmsg.DeleteRecordsRequest
	version int16
}

func (d deleteVersion) MaxVersion() int16 { return d.version }
