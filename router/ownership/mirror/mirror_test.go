package mirror

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

func TestTestimonyGolden(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/format/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	const record = `{"v":1,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","by":"us","prev":12,"epochs":null}`
	value, err := json.Marshal(testimony{Version: 1, Revision: 13, Record: json.RawMessage(record)})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"v":1,"revision":13,"record":`; !bytes.HasPrefix(value, []byte(want)) || !bytes.Contains(doc, []byte(want)) {
		t.Errorf("testimony %s, or docs/format/ownership.md does not show it", value)
	}
	if revision, u, err := ParseTestimony(value); err != nil || revision != 13 || u.Unit != "air/eu" {
		t.Errorf("testimony %d, %+v, %v", revision, u, err)
	}
}

// TestTakeRetired takes the records of units and of regions that are retired and returned:
// both have a member of one name, in another form.
func TestTakeRetired(t *testing.T) {
	memory := ownership.Memory{Epochs: map[string]event.Epoch{}, Live: map[string]uint64{}}
	for _, x := range []struct{ key, record string }{
		{"air/eu", `{"v":3,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","by":"us","prev":12,"retired":["eu"],"epochs":null}`},
		{"region:eu", `{"v":3,"region":"eu","id":2,"live_epoch":4,"state":"FENCED","by":"us","retired":{"by":"us","reason":"site closed"}}`},
	} {
		value, err := json.Marshal(testimony{Version: 1, Revision: 13, Record: json.RawMessage(x.record)})
		if err != nil {
			t.Fatal(err)
		}
		if err := take(x.key, value, &memory); err != nil {
			t.Errorf("%s: %v", x.key, err)
		}
	}
	if memory.Epochs["air/eu"] != 33 || memory.Live["eu"] != 4 || memory.Regions["eu"].Retired == nil {
		t.Errorf("taken are %+v", memory)
	}
}
